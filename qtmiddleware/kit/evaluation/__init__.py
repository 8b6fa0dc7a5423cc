"""Measure retrieval on judged questions, and compare systems by nDCG@10 and other measures.

import qtmiddleware as qtm
comparison = qtm.evaluation.compare(retrieve, {"q1": "Where is it?"}, {"q1": {"passage-7": 1}})
comparison["rules"].difference.gain, comparison["rules"].hurt_rate

`ask_systems` asks several systems the same question and needs no judgements. `explain_movement`
explains each passage's rank after every stage.
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.compare import (
    Progress,
    compare,
    measure,
    require_extras,
    require_measurable,
)
from qtmiddleware.kit.evaluation.dataset import Dataset, Question, load_questions
from qtmiddleware.kit.evaluation.judged_questions import load_judged
from qtmiddleware.kit.evaluation.measures import (
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
from qtmiddleware.kit.evaluation.side_by_side import (
    AskedQuestion,
    SideBySide,
    SystemAnswer,
    ask_systems,
)
from qtmiddleware.kit.evaluation.systems import (
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
from qtmiddleware.retrieval.movement import Hit, Movement, Movements, explain_movement

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
    "AskedQuestion",
    "Comparison",
    "Dataset",
    "Difference",
    "Hit",
    "Movement",
    "Movements",
    "PerQuery",
    "Percentiles",
    "Progress",
    "Question",
    "Run",
    "SideBySide",
    "System",
    "SystemAnswer",
    "SystemScore",
    "ask_systems",
    "asks_a_model",
    "chosen",
    "compare",
    "difference",
    "evaluate",
    "explain_movement",
    "holm",
    "load_judged",
    "load_questions",
    "measure",
    "require_extras",
    "require_measurable",
    "run_of",
]
