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

from qtmiddleware.kit.evaluation.compare import (
    Comparison,
    SystemScore,
    compare,
    measure,
    measure_systems,
    require_extras,
)
from qtmiddleware.kit.evaluation.dataset import Dataset, Question, load_judged, load_questions
from qtmiddleware.kit.evaluation.judge import rank
from qtmiddleware.kit.evaluation.measures import (
    MEASURES,
    PRIMARY,
    TOLERANCE,
    TOP_K,
    Difference,
    difference,
    evaluate,
    holm,
)
from qtmiddleware.kit.evaluation.report import (
    Report,
    report_comparison,
    verdict,
)
from qtmiddleware.kit.evaluation.side_by_side import (
    AskedQuestion,
    SideBySide,
    SystemAnswer,
    ask_systems,
)
from qtmiddleware.kit.evaluation.system import Run, System, index_system, run_of
from qtmiddleware.kit.evaluation.systems import (
    BASELINE,
    FREE,
    MEASURED,
    OWN,
    SYSTEMS,
    USUAL,
    asks_a_model,
    chosen,
)
from qtmiddleware.retrieval.movement import Movements, explain_movement

__all__ = [
    "BASELINE",
    "FREE",
    "MEASURED",
    "MEASURES",
    "OWN",
    "PRIMARY",
    "SYSTEMS",
    "TOLERANCE",
    "TOP_K",
    "USUAL",
    "AskedQuestion",
    "Comparison",
    "Dataset",
    "Difference",
    "Movements",
    "Question",
    "Report",
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
    "index_system",
    "load_judged",
    "load_questions",
    "measure",
    "measure_systems",
    "rank",
    "report_comparison",
    "require_extras",
    "run_of",
    "verdict",
]
