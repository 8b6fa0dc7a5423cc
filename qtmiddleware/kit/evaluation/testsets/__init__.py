"""Let a language model write a test set: a data set of questions about your passages.

Unusable questions are dropped. The others show roughly which of two systems is better on your
documents. They are not users' questions, so each question and the README of the data set say that
the set is synthetic.
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.testsets.generating import Generated, generate
from qtmiddleware.kit.evaluation.testsets.passages import passages_of
from qtmiddleware.kit.evaluation.testsets.writing import check_free, write

__all__ = [
    "Generated",
    "check_free",
    "generate",
    "passages_of",
    "write",
]
