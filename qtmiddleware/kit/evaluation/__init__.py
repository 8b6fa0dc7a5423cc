"""Measure retrieval on judged questions, and compare systems by nDCG@10 and other measures.

import qtmiddleware as qtm
data = qtm.evaluation.load_judged("questions.csv")
comparison = qtm.evaluation.compare(retrieve, data.questions, data.qrels)
comparison["rules"].difference.gain, comparison["rules"].hurt_rate
print(qtm.evaluation.verdict(comparison))

`ask_systems` asks several systems the same question and needs no judgements. `explain_movement`
explains each passage's rank after every stage.
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.compare import Comparison, SystemScore, compare, measure
from qtmiddleware.kit.evaluation.dataset import Dataset, Question, load_judged, load_questions
from qtmiddleware.kit.evaluation.judge import rank
from qtmiddleware.kit.evaluation.measures import Difference
from qtmiddleware.kit.evaluation.report import Report, report_comparison, verdict
from qtmiddleware.kit.evaluation.side_by_side import (
    AskedQuestion,
    SideBySide,
    SystemAnswer,
    ask_systems,
)
from qtmiddleware.kit.evaluation.systems import SYSTEMS, Run
from qtmiddleware.retrieval.movement import Movements, explain_movement

__all__ = [
    "SYSTEMS",
    "AskedQuestion",
    "Comparison",
    "Dataset",
    "Difference",
    "Movements",
    "Question",
    "Report",
    "Run",
    "SideBySide",
    "SystemAnswer",
    "SystemScore",
    "ask_systems",
    "compare",
    "explain_movement",
    "load_judged",
    "load_questions",
    "measure",
    "rank",
    "report_comparison",
    "verdict",
]
