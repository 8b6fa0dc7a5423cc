"""Test sets for those who have none: questions a model writes about a user's own passages, filtered, as a data set.

Such questions say which of two systems is better on these documents, roughly; they are not what
users ask. So a set is marked as synthetic in every question and in the README beside it.
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.testsets.generating import Generated, generate
from qtmiddleware.kit.evaluation.testsets.passages import passages_of
from qtmiddleware.kit.evaluation.testsets.writing import check_free, write

__all__ = ["Generated", "check_free", "generate", "passages_of", "write"]
