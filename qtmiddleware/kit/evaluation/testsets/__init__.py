"""Let a language model write a test set: a data set of questions about your passages.

Unusable questions are dropped. The others show roughly which of two systems is better on your
documents. They are not users' questions, so each question and the README of the data set say that
the set is synthetic.
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.testsets.generating import GeneratedDataset, generate_dataset
from qtmiddleware.kit.evaluation.testsets.passages import read_passages
from qtmiddleware.kit.evaluation.testsets.writing import require_new_folder, write_dataset

__all__ = [
    "GeneratedDataset",
    "generate_dataset",
    "read_passages",
    "require_new_folder",
    "write_dataset",
]
