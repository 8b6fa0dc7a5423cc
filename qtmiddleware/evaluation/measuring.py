"""Several systems run on the same questions and measured against one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation.comparison import PRIMARY, TOLERANCE, Comparison, Percentiles, SystemScore
from qtmiddleware.evaluation.dataset import Dataset
from qtmiddleware.evaluation.doubts import doubts, is_answerable
from qtmiddleware.evaluation.measures import DEEP, PerQuery, evaluate
from qtmiddleware.evaluation.runs import Run, System
from qtmiddleware.evaluation.statistics import difference, holm

Progress = Callable[[str, int, int], None]
"""Told the system's name, how many questions are done and how many there are."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """A run and how long the whole call took, in seconds."""

    run: Run
    seconds: float


def measure(
    systems: Mapping[str, System],
    dataset: Dataset,
    *,
    baseline: str,
    deep: Mapping[str, System] | None = None,
    notes: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Run every system on every question of *dataset* and measure them against the one called *baseline*.

    One question at a time, so that times mean something. *deep* holds the same systems once more, asked for a hundred
    passages: R@100 is measured by them, and nothing else. *notes* are the comparison's, before those on what was found.
    What a system raises passes through with a note of which it was and on which question: a system that fails has no
    score. Raises `ConfigError` if no system is called *baseline*, or there are no questions, a blank one or no
    relevant passage; `MissingExtra` without ir-measures or scipy.
    """
    if baseline not in systems:
        raise ConfigError(
            f"no system is called {baseline!r}", path="baseline", value=baseline, allowed=", ".join(systems)
        )
    require_measurable(dataset)
    require_extras()
    timed = {name: _run_all(name, system, dataset, progress) for name, system in systems.items()}
    measured = {name: evaluate(dataset.qrels, _ids(found)) for name, found in timed.items()}
    for name, system in (deep or {}).items():
        found = _ids(_run_all(f"{name}, deep", system, dataset, progress))
        measured[name] = PerQuery({**measured[name].values, **evaluate(dataset.qrels, found, DEEP).values})
    scores = [_score(name, timed[name], timed[baseline], measured[name], measured[baseline], seed) for name in systems]
    return Comparison(
        dataset=dataset.name,
        passages=len(dataset.passages) or None,
        questions=len(dataset.questions),
        baseline=baseline,
        systems=_corrected(scores, baseline),
        notes=(*notes, *doubts(dataset, {name: _runs(found) for name, found in timed.items()})),
        seed=seed,
        data_hash=dataset.data_hash,
    )


def require_measurable(dataset: Dataset) -> None:
    """Raise `ConfigError` where *dataset* has no judged questions, a blank one, or no relevant passage at all."""
    if not dataset.questions:
        raise ConfigError(f"the data set {dataset.name} has no judged questions", path="dataset", value=dataset.name)
    if blank := [question.id for question in dataset.questions if not question.text.strip()]:
        raise ConfigError(f"the question {blank[0]!r} of the data set {dataset.name} is blank", path="queries")
    if not any(map(is_answerable, dataset.qrels.values())):
        raise ConfigError(
            f"no passage is judged relevant in the data set {dataset.name}: no grade is above 0", path="qrels"
        )


def require_extras() -> None:
    """Raise `MissingExtra` for what measuring needs: now, and not when everything was run and paid for."""
    evaluate({}, {})
    difference(())


def _run_all(name: str, system: System, dataset: Dataset, progress: Progress | None) -> dict[str, _Timed]:
    """What *system* found for each question."""
    found: dict[str, _Timed] = {}
    for done, question in enumerate(dataset.questions, 1):
        began = perf_counter()
        try:
            answer = system(question)
        except Exception as error:
            error.add_note(f"It came of the system {name!r} on the question {question.id!r}.")
            raise
        found[question.id] = _Timed(_as_run(answer), perf_counter() - began)
        if progress is not None:
            progress(name, done, len(dataset.questions))
    return found


def _as_run(answer: Run | Sequence[tuple[str, float]]) -> Run:
    return answer if isinstance(answer, Run) else Run(tuple(id_ for id_, _ in answer))


def _runs(timed: Mapping[str, _Timed]) -> dict[str, Run]:
    return {question: one.run for question, one in timed.items()}


def _ids(timed: Mapping[str, _Timed]) -> dict[str, Sequence[str]]:
    return {question: one.run.ids for question, one in timed.items()}


def _score(
    name: str,
    timed: Mapping[str, _Timed],
    base_timed: Mapping[str, _Timed],
    found: PerQuery,
    base: PerQuery,
    seed: int,
) -> SystemScore:
    """One system's figures, against those of the baseline; the correction for many systems is still to come."""
    gains = {question: found.values[PRIMARY][question] - base.values[PRIMARY][question] for question in timed}
    runs = _runs(timed)
    costs = [run.cost_usd for run in runs.values()]
    degraded = sum(run.degraded for run in runs.values())
    added = [
        one.seconds - base_timed[question].seconds if one.run.seconds_added is None else one.run.seconds_added
        for question, one in timed.items()
    ]
    return SystemScore(
        name=name,
        means=found.means,
        difference=difference(list(gains.values()), seed=seed),
        hurt_rate=sum(gain < -TOLERANCE for gain in gains.values()) / len(gains),
        helped_rate=sum(gain > TOLERANCE for gain in gains.values()) / len(gains),
        added_ms=Percentiles.of([1e3 * seconds for seconds in added]),
        stages_ms=_stages(runs),
        llm_calls=sum(run.llm_calls for run in runs.values()),
        input_tokens=sum(run.input_tokens for run in runs.values()),
        output_tokens=sum(run.output_tokens for run in runs.values()),
        # What a model would have cost that never replied is not known.
        cost_usd=None if None in costs or degraded == len(runs) else sum(cost for cost in costs if cost is not None),
        degraded=degraded,
        gains=gains,
        per_query=found,
        runs=runs,
    )


def _stages(runs: Mapping[str, Run]) -> dict[str, Percentiles]:
    took: dict[str, list[float]] = {}
    for run in runs.values():
        for name, ms in run.stages.items():
            took.setdefault(name, []).append(ms)
    return {name: Percentiles.of(values) for name, values in took.items()}


def _corrected(scores: Sequence[SystemScore], baseline: str) -> tuple[SystemScore, ...]:
    """The *scores* with their probabilities corrected for how many systems were held against the baseline."""
    corrected = holm({score.name: score.difference.p for score in scores if score.name != baseline})
    return tuple(
        replace(score, difference=replace(score.difference, p_holm=corrected.get(score.name, 1.0))) for score in scores
    )
