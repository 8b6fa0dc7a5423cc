"""Measuring retrieval on judged questions: a data set, the field's measures, systems side by side."""

from __future__ import annotations

from qtmiddleware.evaluation.compare import Comparison, Run, SystemScore, compare
from qtmiddleware.evaluation.dataset import Dataset, Question
from qtmiddleware.evaluation.measures import PerQuery, evaluate

__all__ = ["Comparison", "Dataset", "PerQuery", "Question", "Run", "SystemScore", "compare", "evaluate"]
