"""Documents in a vocabulary that no model knows: what the systems gain where nothing can be remembered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.quality.report import SEED, circumstances, mean, points, quality, table, write
from benchmarks.quality.sets import Prepared, Source, prepared, records
from qtmiddleware import preprocess
from qtmiddleware.kit.evaluation import (
    BASELINE,
    PRIMARY,
    USUAL,
    Comparison,
    Question,
    SystemScore,
    chosen,
)
from qtmiddleware.retrieval.bm25 import find_terms

DATA: Final = Path("benchmarks/data")
NAME: Final = "orrisdale"
NOT_RECORDED: Final = ("multi_query", "keywords")
SYSTEMS: Final = (*(name for name in USUAL if name not in NOT_RECORDED), "balanced, no hyde")
WRONG: Final = 5


def run(source: Source) -> None:
    """Measure the set, and what is remembered of it and of the others; write ``results/quality-private.md``."""
    own = Source(DATA, source.recordings, (NAME,), source.is_whole)
    remembered = {}
    for here, name in ((own, NAME), *((source, name) for name in source.names)):
        with prepared(here, name) as one:
            found = one.measured(chosen(SYSTEMS if here is own else []), SEED)
            remembered[name] = _remembered(one, found[BASELINE], records(here.recording(name)))
            if here is own:
                comparison, kinds = found, _kinds(one)
    parts = [
        _systems(comparison),
        "## By kind of question\n\n" + _by_kind(comparison, kinds),
        "## How much of a set the imagined passages know\n\n" + _shares(remembered),
    ]
    write(own, "quality-private", circumstances(own, "private"), parts)


def _systems(comparison: Comparison) -> str:
    rows = []
    for score in comparison.systems:
        gained = "" if score.name == BASELINE else points(score.difference, corrected=True)
        found = [quality(score.means[PRIMARY], score.hurt_rate), gained, f"{score.helped_rate:.0%}"]
        rows.append([score.name, *found, f"{score.llm_calls / len(score.runs):.2f}"])
    return table(["system", "nDCG@10 (hurt)", "gain", "helped", "calls a question"], rows)


def _kinds(one: Prepared) -> dict[str, list[str]]:
    """The ids of the questions of each kind."""
    kinds: dict[str, list[str]] = {}
    for question in one.data.questions:
        kinds.setdefault(question.metadata["type"], []).append(question.id)
    return kinds


def _by_kind(comparison: Comparison, kinds: Mapping[str, list[str]]) -> str:
    def cell(score: SystemScore, ids: list[str]) -> str:
        values = score.per_query.values[PRIMARY]
        return quality(
            mean([values[id_] for id_ in ids]), mean([score.gains[id_] < 0 for id_ in ids])
        )

    head = ["system", *(f"{kind} ({len(ids)})" for kind, ids in kinds.items())]
    return table(
        head,
        [
            [score.name, *(cell(score, ids) for ids in kinds.values())]
            for score in comparison.systems
        ],
    )


def _remembered(
    one: Prepared, raw: SystemScore, replies: Mapping[str, Mapping[str, Any]]
) -> tuple[float, float]:
    """The share of new words of the imagined passages in the best passages, and in the first wrong ones of *raw*."""
    texts = {passage.id: passage.text for passage in one.data.passages}
    right, wrong = [], []
    for question in one.data.questions:
        new = find_terms(preprocess(replies[question.id]["hyde"])) - _known(
            question, replies[question.id]
        )
        grades = one.data.qrels[question.id]
        best = [id_ for id_, grade in grades.items() if grade == max(grades.values())]
        others = [id_ for id_ in raw.runs[question.id].ids if grades.get(id_, 0) <= 0][:WRONG]
        if new and others:
            right.append(mean([len(new & find_terms(texts[id_])) / len(new) for id_ in best]))
            wrong.append(mean([len(new & find_terms(texts[id_])) / len(new) for id_ in others]))
    return mean(right), mean(wrong)


def _known(question: Question, reply: Mapping[str, Any]) -> frozenset[str]:
    said = [question.text, reply["standalone"] or "", *(turn.content for turn in question.history)]
    return find_terms(" ".join(said))


def _shares(remembered: Mapping[str, tuple[float, float]]) -> str:
    rows = [
        [name, f"{right:.0%}", f"{wrong:.0%}", f"{right / wrong:.1f}"]
        for name, (right, wrong) in remembered.items()
    ]
    return table(["set", "in the best passages", "in wrong ones", "times as many"], rows)
