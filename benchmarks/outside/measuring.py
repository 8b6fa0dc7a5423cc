"""Every set measured: the free systems on many questions, those with a model on the questions that were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.outside.sets import OutsideSet
from benchmarks.outside.sources import KEPT
from benchmarks.quality.report import SEED
from benchmarks.quality.sets import MODEL, records
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import Comparison, Dataset, chosen
from qtmiddleware.kit.evaluation.bench import open_bench

QUESTIONS: Final = 400
"""At most so many of a set are asked where they cost nothing."""
FREE: Final = ("rules",)
RECORDED: Final = ("rules", "rewrite", "hyde", "balanced", "auto", "balanced, no hyde")


@dataclass(frozen=True)
class Measured:
    """How the systems did on one set; *recorded* only where there are recorded replies."""

    free: Comparison
    recorded: Comparison | None = None


def measured(one: OutsideSet) -> Measured:
    """Both parts of one converted set."""
    data = Dataset.load(one.folder)
    free = _compared(data, FREE, questions=QUESTIONS)
    if one.recording is None:
        return Measured(free)
    replies = records(one.recording)
    recorded = _compared(data, RECORDED, recording=one.recording)
    if recorded.questions < len(replies):
        raise SystemExit(
            f"{one.name}: {len(replies)} replies, but only {recorded.questions} of their questions exist"
        )
    return Measured(free, recorded)


def _compared(
    data: Dataset,
    systems: Sequence[str],
    *,
    questions: int | None = None,
    recording: Path | None = None,
) -> Comparison:
    opened = open_bench(
        data,
        Settings(embedding_model=MODEL),
        recordings=recording,
        cache=KEPT,
        questions=questions,
        seed=SEED,
    )
    with opened as bench:
        return bench.measure(chosen(systems), seed=SEED)
