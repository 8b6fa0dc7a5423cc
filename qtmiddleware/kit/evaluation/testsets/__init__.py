"""Test sets that a language model writes: filtered questions about your passages, as a data set.

Such questions tell roughly which of two systems is better on these documents; they are not what
users ask. Every question, and the README beside them, therefore says that the set is synthetic.
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.testsets.generating import Generated, generate
from qtmiddleware.kit.evaluation.testsets.passages import passages_of
from qtmiddleware.kit.evaluation.testsets.writing import check_free, write

__all__ = ["Generated", "check_free", "generate", "passages_of", "write"]
