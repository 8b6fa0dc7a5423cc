"""Small collections of one topic, as people begin with: what each preset does for and to their questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.quality.report import SEED, circumstances, mean, table, write
from benchmarks.quality.sets import Source, prepared
from qtmiddleware.config.reading import read_preset
from qtmiddleware.kit.evaluation import Comparison, SystemScore
from qtmiddleware.kit.evaluation.measures import PRIMARY
from qtmiddleware.kit.evaluation.systems import BASELINE

FOLDER: Final = "small"
PRESETS: Final = ("rules", "words", "balanced", "thorough")
ALWAYS: Final[Mapping[str, Any]] = {"escalation": {"mode": "always"}}
SYSTEMS: Final[Mapping[str, Mapping[str, Any]]] = {
    BASELINE: read_preset("off")[1],
    **{name: {**read_preset(name)[1], **ALWAYS} for name in PRESETS},
    "balanced, without evidence": {
        **read_preset("balanced")[1],
        **ALWAYS,
        "keywordEvidence": {"enabled": False},
    },
}


def run(source: Source) -> None:
    """Measure all small sets that were recorded, and write ``results/quality-small.md``."""
    small = Source.of(source.data / FOLDER, source.recordings / FOLDER)
    found: dict[str, Comparison] = {}
    grades: dict[str, Mapping[str, Mapping[str, int]]] = {}
    for name in small.names:
        with prepared(small, name) as one:
            found[name] = one.measured(SYSTEMS, SEED)
            grades[name] = one.data.qrels
    parts = [_summary(found, grades), "## By collection\n\n" + _by_set(found)]
    about = circumstances(small, "small")
    about["command"] = circumstances(source, "small")["command"]
    write(small, "quality-small", about, parts)


def _summary(
    found: Mapping[str, Comparison], grades: Mapping[str, Mapping[str, Mapping[str, int]]]
) -> str:
    """Means over the collections, in questions of 100."""
    rows = []
    for name in SYSTEMS:
        scores = [comparison[name] for comparison in found.values()]
        first = mean(
            [_count_first_right(comparison[name], grades[of]) for of, comparison in found.items()]
        )
        cells = [f"{mean([score.means[PRIMARY] for score in scores]):.3f}", f"{100 * first:.0f}"]
        if name == BASELINE:
            cells += ["", ""]
        else:
            cells += [f"{100 * mean([score.helped_rate for score in scores]):.1f}"]
            cells += [f"{100 * mean([score.hurt_rate for score in scores]):.1f}"]
        cells += [f"{mean([score.llm_calls / len(score.runs) for score in scores]):.2g}"]
        cells += [f"{mean([score.searches_per_question or 0.0 for score in scores]):.2g}"]
        rows.append([name, *cells])
    head = ["preset", "nDCG@10", "of 100 questions: first result right", "better", "worse"]
    return table([*head, "model calls per question", "searches per question"], rows)


def _count_first_right(score: SystemScore, grades: Mapping[str, Mapping[str, int]]) -> float:
    """The share of questions whose first result has the highest grade of their judgements."""
    right = [
        grades[id_].get(run.ids[0], 0) == max(grades[id_].values())
        for id_, run in score.runs.items()
        if run.ids
    ]
    return sum(right) / len(score.runs)


def _by_set(found: Mapping[str, Comparison]) -> str:
    rows = [
        [
            f"{set_name} ({comparison.passages})",
            *(
                f"{comparison[name].means[PRIMARY]:.3f} ({comparison[name].hurt_rate:.0%})"
                for name in SYSTEMS
            ),
        ]
        for set_name, comparison in found.items()
    ]
    return table(["collection (passages)", *SYSTEMS], rows)
