"""Measuring retrieval on judged questions: a data set, the field's measures, systems side by side.

import qtmiddleware as qtm
found = qtm.evaluation.compare(retrieve, {"q1": "Where is it?"}, {"q1": {"passage-7": 1}})
found["rules"].difference.gain, found["rules"].hurt_rate
"""

from __future__ import annotations

from qtmiddleware.evaluation.compare import Progress, compare, measure, require_extras, require_measurable
from qtmiddleware.evaluation.dataset import Dataset, Question
from qtmiddleware.evaluation.measures import (
    DEEP,
    DEPTH,
    MEASURES,
    PRIMARY,
    TOLERANCE,
    TOP_K,
    Comparison,
    Difference,
    Percentiles,
    PerQuery,
    SystemScore,
    difference,
    evaluate,
    holm,
)
from qtmiddleware.evaluation.systems import (
    BASELINE,
    FREE,
    MEASURED,
    SYSTEMS,
    USUAL,
    Run,
    System,
    asks_a_model,
    chosen,
    run_of,
)

__all__ = [
    "BASELINE",
    "DEEP",
    "DEPTH",
    "FREE",
    "MEASURED",
    "MEASURES",
    "PRIMARY",
    "SYSTEMS",
    "TOLERANCE",
    "TOP_K",
    "USUAL",
    "Comparison",
    "Dataset",
    "Difference",
    "PerQuery",
    "Percentiles",
    "Progress",
    "Question",
    "Run",
    "System",
    "SystemScore",
    "asks_a_model",
    "chosen",
    "compare",
    "difference",
    "evaluate",
    "holm",
    "measure",
    "require_extras",
    "require_measurable",
    "run_of",
]
