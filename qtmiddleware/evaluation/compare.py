"""Several ways to search, measured on the same questions against one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation.measures import PerQuery, evaluate

if TYPE_CHECKING:
    from qtmiddleware.evaluation.dataset import Dataset, Question

TOLERANCE: Final = 1e-9
"""By how much two values of a measure must differ to be different, and not the rounding of one."""
HURT_BY: Final = "nDCG@10"
"""The measure by which a question does worse or better than with the baseline."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a system found for one question: *ids*, best first, and what that took.

    *seconds_added* is the time beyond that of a plain search, where the system knows it.
    """

    ids: tuple[str, ...]
    seconds_added: float | None = None
    llm_calls: int = 0
    degraded: bool = False


System = Callable[["Question"], Run | Sequence[tuple[str, float]]]
"""Something that searches: answers a `Run`, or pairs of id and score, best first."""
Progress = Callable[[str, int, int], None]
"""Told the system's name, how many questions are done and how many there are."""


@dataclass(frozen=True, slots=True)
class SystemScore:
    """How one system did on all questions.

    *hurt_rate* and *helped_rate* are the shares of questions with a lower or higher nDCG@10 than the baseline's.
    *median_added_ms* is what the system reported of itself or, where it reported nothing, its time beyond the
    baseline's on the same question. *runs* and *per_query* hold every single question.
    """

    name: str
    means: Mapping[str, float]
    hurt_rate: float
    helped_rate: float
    median_added_ms: float
    llm_calls: int
    degraded: int
    per_query: PerQuery = field(repr=False)
    runs: Mapping[str, Run] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, without the ids that were found."""
        return {
            "name": self.name,
            "means": dict(self.means),
            "hurtRate": self.hurt_rate,
            "helpedRate": self.helped_rate,
            "medianAddedMs": self.median_added_ms,
            "llmCalls": self.llm_calls,
            "degraded": self.degraded,
            "perQuery": {name: dict(values) for name, values in self.per_query.values.items()},
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """How all systems did on one data set, in the order they were given."""

    dataset: str
    passages: int
    questions: int
    baseline: str
    systems: tuple[SystemScore, ...]

    def __getitem__(self, name: str) -> SystemScore:
        """The score of the system called *name*."""
        return {system.name: system for system in self.systems}[name]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON."""
        return {
            "dataset": self.dataset,
            "passages": self.passages,
            "questions": self.questions,
            "baseline": self.baseline,
            "systems": [system.to_dict() for system in self.systems],
        }


@dataclass(frozen=True, slots=True)
class _Timed:
    """A run and how long the whole call took, in seconds."""

    run: Run
    seconds: float


def compare(
    systems: Mapping[str, System], dataset: Dataset, *, baseline: str, progress: Progress | None = None
) -> Comparison:
    """Run every system on every question of *dataset* and measure them against the one called *baseline*.

    One question at a time, so that times mean something. What a system raises passes through: a system that fails has
    no score. Raises `ConfigError` if no system is called *baseline* or there are no questions, `MissingExtra` without
    ir-measures.
    """
    if baseline not in systems:
        raise ConfigError(
            f"no system is called {baseline!r}", path="baseline", value=baseline, allowed=", ".join(systems)
        )
    if not dataset.questions:
        raise ConfigError(f"the data set {dataset.name} has no judged questions", path="dataset", value=dataset.name)
    timed = {name: _run_all(name, system, dataset, progress) for name, system in systems.items()}
    measured = {
        name: evaluate(dataset.qrels, {question: one.run.ids for question, one in found.items()})
        for name, found in timed.items()
    }
    scores = tuple(_score(name, timed[name], timed[baseline], measured[name], measured[baseline]) for name in systems)
    return Comparison(dataset.name, len(dataset.passages), len(dataset.questions), baseline, scores)


def _run_all(name: str, system: System, dataset: Dataset, progress: Progress | None) -> dict[str, _Timed]:
    """What *system* found for each question."""
    found: dict[str, _Timed] = {}
    for done, question in enumerate(dataset.questions, 1):
        began = perf_counter()
        answer = system(question)
        found[question.id] = _Timed(_as_run(answer), perf_counter() - began)
        if progress is not None:
            progress(name, done, len(dataset.questions))
    return found


def _as_run(answer: Run | Sequence[tuple[str, float]]) -> Run:
    return answer if isinstance(answer, Run) else Run(tuple(id_ for id_, _ in answer))


def _score(
    name: str, timed: Mapping[str, _Timed], base_timed: Mapping[str, _Timed], found: PerQuery, base: PerQuery
) -> SystemScore:
    """One system's figures, against those of the baseline."""
    ours, theirs = found.values[HURT_BY], base.values[HURT_BY]
    gains = [ours[question] - theirs[question] for question in timed]
    added = [
        one.seconds - base_timed[question].seconds if one.run.seconds_added is None else one.run.seconds_added
        for question, one in timed.items()
    ]
    return SystemScore(
        name=name,
        means=found.means,
        hurt_rate=sum(gain < -TOLERANCE for gain in gains) / len(gains),
        helped_rate=sum(gain > TOLERANCE for gain in gains) / len(gains),
        median_added_ms=1000 * median(added),
        llm_calls=sum(one.run.llm_calls for one in timed.values()),
        degraded=sum(one.run.degraded for one in timed.values()),
        per_query=found,
        runs={question: one.run for question, one in timed.items()},
    )
