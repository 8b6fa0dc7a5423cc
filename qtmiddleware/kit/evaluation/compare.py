"""Systems measured on the same judged questions: a live function under several settings, or systems of any make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Protocol, Unpack

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.dataset import HIGHEST_GRADE, Dataset, Qrels, Question
from qtmiddleware.kit.evaluation.measures import (
    DEEP,
    DEPTH,
    PRIMARY,
    TOLERANCE,
    TOP_K,
    Comparison,
    Percentiles,
    PerQuery,
    SystemScore,
    difference,
    evaluate,
    holm,
)
from qtmiddleware.kit.evaluation.own_function import (
    IdCheck,
    OwnFunction,
    hash_settings,
    open_runner,
)
from qtmiddleware.kit.evaluation.systems import BASELINE, FREE, SYSTEMS, USUAL, Run, System, chosen
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

OWN: Final = "yours"
MOST_FAILED: Final = 5
"""A system that fails on each of its first so many questions is not asked the others."""
MOST_IN_A_ROW: Final = 20
"""Nor is one that fails on so many one after the other: its index is down, and may be up again later."""
_MOST_NAMED: Final = 3
_MOST_CHARS: Final = 160

Progress = Callable[[str, int, int], None]
"""Receives the system's name, how many questions are done and how many there are."""


def compare(
    fn: Callable[..., Any],
    queries: Mapping[str, str] | Iterable[Question],
    qrels: Qrels,
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None,
    *,
    client: Any = None,
    arguments: Mapping[str, Any] | None = None,
    top_k: int | None = TOP_K,
    deep: bool = False,
    name: str = "live function",
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[WrapOptions],
) -> Comparison:
    """Measure the retrieval function *fn* as it is and under each of the *systems*, on judged questions.

    *fn* is a plain function as it would be wrapped, with `WrapOptions` for *options*, or one that
    is wrapped already: then every system's settings are laid over its own, and ``yours`` is what it
    does by itself. It is called with the question first, *top_k* where its signature has a
    parameter for that, and *arguments*. *queries* are texts by id, or `Question`s, which may have a
    history; *qrels* the grades of passages, by question and passage. *systems* are settings by
    name, or names out of `SYSTEMS`; by default those that need no model and, with a *client* or a
    wrapped
    *fn*, the others too. ``raw`` is always among them, and all are measured against it. With *deep*
    every system is asked once more, for a hundred passages, which R@100 is measured by.

    A question that *fn* fails on is left out of all figures, and the notes say why; what *fn*
    raises passes through only if it fails on each of the first five, or on twenty one after the
    other. Raises `ConfigError` for unknown systems, impossible settings, questions or judgements
    that do not fit, results without ids, or ids that no judgement knows; `WrapError` for a function
    that cannot be wrapped, or an asynchronous one where an event loop runs already; `MissingExtra`
    without ir-measures or scipy.
    """
    data = _build_dataset(name, queries, qrels)
    check_options(compare, options, WrapOptions.__optional_keys__)
    is_wrapped = isinstance(fn, Wrapped | Bound)
    if is_wrapped and (client is not None or options):
        raise ConfigError(
            "fn is already wrapped; set the client and the options where you wrap it", path="fn"
        )
    base: Any = fn if is_wrapped else QueryMiddleware({}, client=client).wrap(fn, **options)
    settings = choose_systems(
        systems, has_model=client is not None or is_wrapped, is_wrapped=is_wrapped
    )
    with open_runner(base, "compare") as runner:
        own = OwnFunction(base, dict(arguments or {}), top_k, runner, IdCheck.of(data.qrels))
        return measure_systems(own, data, settings, deep=deep, seed=seed, progress=progress)


class Makes(Protocol):
    """Something that systems can be made of by their settings: an index, or a function of the user's own."""

    def system(self, settings: Mapping[str, Any], top_k: int = ...) -> System:
        """Return the system of *settings*, which asks for *top_k* passages."""
        ...


def measure_systems(
    bench: Makes,
    data: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    *,
    deep: bool = False,
    notes: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Measure every one of the *systems*, made of *bench*, on every question of *data* against the raw query.

    With *deep* each is asked once more, for a hundred passages, which R@100 is measured by.
    """
    comparison = measure(
        {name: bench.system(settings) for name, settings in systems.items()},
        data,
        baseline=BASELINE,
        # These are systems of their own, so a gate learns nothing here that changes the measured
        # ones.
        deep=(
            {name: bench.system(settings, DEPTH) for name, settings in systems.items()}
            if deep
            else None
        ),
        notes=notes,
        seed=seed,
        progress=progress,
    )
    return replace(
        comparison, settings={name: hash_settings(settings) for name, settings in systems.items()}
    )


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

    One question at a time, so that times mean something. *deep* holds the same systems once more,
    asked for a hundred
    passages: R@100 is measured by them, and nothing else. *notes* are the comparison's, before
    those on what was found. A question whose run has an ``error`` is counted, noted and left out of
    every system's figures; the error is raised if a system fails on each of its first `MOST_FAILED`
    questions, or on `MOST_IN_A_ROW` one after the other. What a system raises passes through with a
    note of which it was and on which question: a system that fails has no score.

    Raises `ConfigError` if no system is called *baseline*, or there are no questions, a blank one
    or no relevant passage; `MissingExtra` without ir-measures or scipy.
    """
    if baseline not in systems:
        raise ConfigError(
            f"baseline must be the name of a system, not {baseline!r}",
            path="baseline",
            value=baseline,
            allowed=", ".join(systems),
        )
    require_measurable(dataset)
    require_extras()
    runs: dict[str, dict[str, Run]] = {}
    deep_runs: dict[str, dict[str, Run]] = {}
    seconds: dict[str, dict[str, float]] = {}
    failures: dict[str, dict[str, Exception]] = {}
    whole = dataset
    for name, system in systems.items():
        runs[name], seconds[name] = _run(name, system, dataset, progress)
        dataset = _leave_failed_out(name, runs[name], dataset, failures)
    for name, system in (deep or {}).items():
        deep_runs[name], _ = _run(f"{name}, deep", system, dataset, progress)
        dataset = _leave_failed_out(name, deep_runs[name], dataset, failures)
    left = [question.id for question in dataset.questions]
    runs = {name: {asked: found[asked] for asked in left} for name, found in runs.items()}
    measured = {name: evaluate(dataset.qrels, _list_ids(found)) for name, found in runs.items()}
    for name, found in deep_runs.items():
        measured[name] = PerQuery(
            {**measured[name].values, **evaluate(dataset.qrels, _list_ids(found), DEEP).values}
        )
    scores = {}
    for name, found in runs.items():
        # What a system does not say itself is its time beyond the baseline's on the same question.
        beyond = {asked: seconds[name][asked] - seconds[baseline][asked] for asked in found}
        added = [
            beyond[asked] if run.seconds_added is None else run.seconds_added
            for asked, run in found.items()
        ]
        added_ms = Percentiles.of([1e3 * took for took in added])
        score = _score(
            name, found, measured[name], measured[baseline], added_ms=added_ms, seed=seed
        )
        scores[name] = replace(score, failed=len(failures.get(name, ())))
    corrected = holm(
        {name: score.difference.p for name, score in scores.items() if name != baseline}
    )
    return Comparison(
        dataset=dataset.name,
        passages=len(dataset.passages) or None,
        questions=len(dataset.questions),
        baseline=baseline,
        systems=tuple(
            replace(score, difference=replace(score.difference, p_holm=corrected.get(name, 1.0)))
            for name, score in scores.items()
        ),
        notes=(*notes, *_describe_failures(failures, whole), *_find_doubts(dataset, runs)),
        seed=seed,
        data_hash=whole.data_hash,
        fingerprints=whole.fingerprints,
    )


def require_measurable(dataset: Dataset) -> None:
    """Raise `ConfigError` where *dataset* has no judged questions, a blank one, or no relevant passage at all."""
    if not dataset.questions:
        raise ConfigError(
            f"the data set {dataset.name} has no judged questions",
            path="dataset",
            value=dataset.name,
        )
    if blank := [question.id for question in dataset.questions if not question.text.strip()]:
        raise ConfigError(
            f"the question {blank[0]!r} of the data set {dataset.name} is blank", path="queries"
        )
    if not any(map(_is_answerable, dataset.qrels.values())):
        raise ConfigError(
            f"the data set {dataset.name} must have a passage with a grade above 0", path="qrels"
        )


def require_extras() -> None:
    """Raise `MissingExtra` for what measuring needs: now, and not when everything was run and paid for."""
    evaluate({}, {})
    difference(())


# --- a live function ------------------------------------------------------------------------------


def choose_systems(
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] | None,
    *,
    has_model: bool,
    is_wrapped: bool,
) -> dict[str, Mapping[str, Any]]:
    """Return the systems to compare, the baseline first."""
    if isinstance(systems, Mapping):
        reserved = {BASELINE, OWN} if is_wrapped else {BASELINE}
        if taken := [
            name for name in systems if name in reserved and systems[name] != SYSTEMS.get(name)
        ]:
            raise ConfigError(
                f"the name {taken[0]!r} is reserved; rename the system", path="systems"
            )
        found = {**chosen(()), **systems}
    elif isinstance(systems, str):
        found = chosen([systems])
    else:
        found = chosen(systems if systems is not None else USUAL if has_model else FREE)
    return {**found, OWN: {}} if is_wrapped else found


def _build_dataset(
    name: str, queries: Mapping[str, str] | Iterable[Question], qrels: Qrels
) -> Dataset:
    """Return the judged questions; raises `ConfigError` where a judgement is about none of them, or is none."""
    questions: list[Any] = (
        [Question(*one) for one in queries.items()]
        if isinstance(queries, Mapping)
        else list(queries)
    )
    for number, one in enumerate(questions, 1):
        if not (
            isinstance(one, Question) and all(isinstance(it, str) for it in (one.id, one.text))
        ):
            raise ConfigError(
                f"query {number} must be a Question, or text under an id that is text",
                path="queries",
            )
    known = {question.id for question in questions}
    if len(known) < len(questions):
        raise ConfigError("two of the queries have the same id", path="queries")
    if unknown := [id_ for id_ in qrels if id_ not in known]:
        raise ConfigError(
            f"{len(unknown)} judged questions are not among the queries, the first is"
            f" {unknown[0]!r}",
            path="qrels",
        )
    judged = tuple(question for question in questions if question.id in qrels)
    grades = {question.id: _check_grades(question.id, qrels[question.id]) for question in judged}
    return Dataset(name, (), judged, grades)


def _check_grades(question: str, grades: Any) -> dict[str, int]:
    """Return the judgements of one *question*; raises `ConfigError` for what is none."""
    if not isinstance(grades, Mapping) or not all(
        isinstance(id_, str) and isinstance(grade, int) and abs(grade) <= HIGHEST_GRADE
        for id_, grade in grades.items()
    ):
        raise ConfigError(
            f"the judgements of {question!r} must be a mapping of passage ids to whole numbers of"
            f" at most {HIGHEST_GRADE:,}, not {type(grades).__name__}; for example"
            " {'passage-1': 1}",
            path="qrels",
        )
    return dict(grades)


# --- figures --------------------------------------------------------------------------------------


def _run(
    name: str, system: System, dataset: Dataset, progress: Progress | None
) -> tuple[dict[str, Run], dict[str, float]]:
    """Return what *system* finds for each question, and how many seconds the whole call takes."""
    runs: dict[str, Run] = {}
    seconds: dict[str, float] = {}
    failed, total = 0, len(dataset.questions)
    for done, question in enumerate(dataset.questions, 1):
        began = perf_counter()
        try:
            answer = system(question)
        except Exception as error:
            error.add_note(f"The system {name!r} raised this on the question {question.id!r}.")
            raise
        seconds[question.id] = perf_counter() - began
        found = answer if isinstance(answer, Run) else Run(tuple(id_ for id_, _ in answer))
        runs[question.id] = found
        failed = 0 if found.error is None else failed + 1
        if found.error is not None and (
            failed == min(MOST_FAILED, total) == done or failed == MOST_IN_A_ROW
        ):
            found.error.add_note(f"The system {name!r} failed on {failed} questions in a row.")
            raise found.error
        if progress is not None:
            progress(name, done, total)
    return runs, seconds


def _leave_failed_out(
    name: str, runs: Mapping[str, Run], dataset: Dataset, failures: dict[str, dict[str, Exception]]
) -> Dataset:
    """Return *dataset* without the questions that the system called *name* failed on, which *failures* get."""
    failed = {asked: run.error for asked, run in runs.items() if run.error is not None}
    if not failed:
        return dataset
    failures[name] = {**failures.get(name, {}), **failed}
    if len(failed) == len(dataset.questions):
        error = next(iter(failed.values()))
        error.add_note(f"The system {name!r} failed on every question that was left.")
        raise error
    return dataset.only(dataset.qrels.keys() - failed.keys())


def _describe_failures(
    failures: Mapping[str, Mapping[str, Exception]], dataset: Dataset
) -> Iterator[str]:
    """Yield a sentence on the questions that no figure is about."""
    if not failures:
        return
    count = sum(map(len, failures.values()))
    named = [
        f"{name} on {asked!r} ({describe_error(error)})"
        for name, found in failures.items()
        for asked, error in found.items()
    ]
    more = f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
    yield (
        f"{count} of {len(dataset.questions)} questions failed and are not counted: "
        f"{'; '.join(named[:_MOST_NAMED])}{more}."
    )


def describe_error(error: Exception) -> str:
    """Return the kind of *error* and what it says, on one line of bounded length."""
    text = " ".join(str(error)[: 4 * _MOST_CHARS].split())
    text = text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _list_ids(runs: Mapping[str, Run]) -> dict[str, Sequence[str]]:
    return {question: run.ids for question, run in runs.items()}


def _score(
    name: str,
    runs: Mapping[str, Run],
    found: PerQuery,
    base: PerQuery,
    *,
    added_ms: Percentiles,
    seed: int,
) -> SystemScore:
    """Return one system's figures against the baseline's; they are not yet corrected for many systems."""
    gains = {
        question: found.values[PRIMARY][question] - base.values[PRIMARY][question]
        for question in runs
    }
    costs = [run.cost_usd for run in runs.values()]
    degraded = sum(run.degraded for run in runs.values())
    return SystemScore(
        name=name,
        means=found.means,
        difference=difference(list(gains.values()), seed=seed),
        hurt_rate=sum(gain < -TOLERANCE for gain in gains.values()) / len(gains),
        helped_rate=sum(gain > TOLERANCE for gain in gains.values()) / len(gains),
        added_ms=added_ms,
        stages_ms=_summarise_stages(runs),
        llm_calls=sum(run.llm_calls for run in runs.values()),
        input_tokens=sum(run.input_tokens for run in runs.values()),
        output_tokens=sum(run.output_tokens for run in runs.values()),
        # What a model would have cost that never replied is not known.
        cost_usd=(
            None
            if None in costs or degraded == len(runs)
            else sum(cost for cost in costs if cost is not None)
        ),
        degraded=degraded,
        gains=gains,
        per_query=found,
        runs=runs,
    )


def _summarise_stages(runs: Mapping[str, Run]) -> dict[str, Percentiles]:
    stages: dict[str, list[float]] = {}
    for run in runs.values():
        for name, ms in run.stages.items():
            stages.setdefault(name, []).append(ms)
    return {name: Percentiles.of(values) for name, values in stages.items()}


def _find_doubts(dataset: Dataset, runs: Mapping[str, Mapping[str, Run]]) -> Iterator[str]:
    """Yield a sentence on each thing that makes the figures of *runs* mean less than they seem to."""
    count = len(dataset.questions)
    if unanswerable := sum(not _is_answerable(grades) for grades in dataset.qrels.values()):
        yield (
            f"{unanswerable} of {count} questions have no relevant passage in their judgements; "
            "they count as 0 for every system."
        )
    if not any(
        not dataset.qrels[asked].keys().isdisjoint(run.ids)
        for found in runs.values()
        for asked, run in found.items()
    ):
        yield (
            "No passage that a system found is judged; check that the judgements use the ids that"
            " the search returns."
        )
    for name, found in runs.items():
        if degraded := sum(run.degraded for run in found.values()):
            yield (
                f"{name}: {degraded} of {count} answers are degraded, mostly as the model did not"
                " reply. They count with what was found without it, and their time and price are"
                " too low."
            )


def _is_answerable(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())
