"""Compare systems on the same judged questions, such as your function with several settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Protocol, Unpack, cast

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
from qtmiddleware.kit.evaluation.systems import (
    BASELINE,
    FREE,
    SYSTEMS,
    USUAL,
    Run,
    System,
    chosen,
)
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Wrapped

OWN: Final = "yours"
"""The name of the system that is a wrapped function with its own settings."""
MOST_FAILED: Final = 5
"""If a system fails on each of this many first questions, its error is raised."""
MOST_IN_A_ROW: Final = 20
"""If a system fails on this many questions in a row, its error is raised.

Shorter series are tolerated, because an index that is down may soon be up again.
"""
_MOST_NAMED: Final = 3
_MOST_CHARS: Final = 160

Progress = Callable[[str, int, int], None]
"""A callback that receives the system's name, the number of questions done and their total."""


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
    """Measure *fn* on judged questions, first unchanged, then with each system's settings.

    All systems are compared with ``raw``, the unchanged *fn*. If *fn* fails on a question, all
    figures leave out the question, and `Comparison.notes` says why. If *fn* fails on each of the
    first five questions, or on twenty in a row, its exception is raised.

    Args:
        fn: Your retrieval function, wrapped or not. Its first argument is the question. If *fn* is
            not wrapped, it is wrapped with *options*. If *fn* is wrapped, each system's settings
            override the settings of *fn*, and the system ``yours`` has the settings of *fn*.
        queries: The questions' texts by id, or `Question`s, which may have a history.
        qrels: The grades, by question id and passage id.
        systems: Settings by the system's name, or names from `SYSTEMS`. Default: the systems that
            need no model; with *client* or a wrapped *fn*, also the systems that need a model.
        client: The model client for a plain *fn*.
        arguments: Other keyword arguments for every call of *fn*.
        top_k: The number of passages to ask for, if *fn* has a parameter for it. ``None``: the
            default of *fn*.
        deep: Whether to also ask every system for a hundred passages, to measure R@100.
        name: The name of the data set in reports.
        seed: The seed of the statistical tests and intervals.
        progress: Receives the system's name, the number of questions done and the total number.
        options: Options for wrapping a plain *fn*, as in `WrapOptions`.

    Raises:
        ConfigError: A system is unknown, settings are not valid, the judgements name unknown
            questions, results have no ids, or none of these ids is in the judgements.
        WrapError: *fn* cannot be wrapped, or is asynchronous while an event loop is running.
        MissingExtra: ir-measures or scipy is not installed.
    """
    data = _build_dataset(name, queries, qrels)
    check_options(compare, options, WrapOptions.__optional_keys__)
    is_wrapped = isinstance(fn, Wrapped)
    if is_wrapped and (client is not None or options):
        raise ConfigError(
            "fn is already wrapped; set the client and the options where you wrap it", path="fn"
        )
    base: Any = (
        fn if is_wrapped else QueryMiddleware({}, client=client).wrap(fn, **cast(Any, options))
    )
    settings = _choose_systems(
        systems, has_model=client is not None or is_wrapped, is_wrapped=is_wrapped
    )
    with open_runner(base, "compare") as runner:
        function = OwnFunction(
            base, dict(arguments or {}), top_k, runner, IdCheck.from_qrels(data.qrels)
        )
        return measure_systems(function, data, settings, is_deep=deep, seed=seed, progress=progress)


class SystemBuilder(Protocol):
    """An object that builds the systems to compare, such as `OwnFunction`."""

    def build_system(self, settings: Mapping[str, Any], top_k: int = ...) -> System:
        """Return a system with *settings* that searches for *top_k* passages."""
        ...


def measure_systems(
    builder: SystemBuilder,
    dataset: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    *,
    is_deep: bool = False,
    notes: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Measure each of *systems* on every question of *dataset*, and compare them with ``raw``.

    Args:
        builder: Builds each system from its settings.
        dataset: The judged questions.
        systems: The settings of each system, by the system's name.
        is_deep: Whether to also ask each system for a hundred passages, to measure R@100.
        notes: Sentences to put before the comparison's own notes.
        seed: The seed of the statistical tests and intervals.
        progress: Receives the system's name, the number of questions done and the total number.
    """
    comparison = measure(
        {name: builder.build_system(settings) for name, settings in systems.items()},
        dataset,
        baseline=BASELINE,
        # Separate systems, because what their gate learns here must not change the measured ones.
        deep=(
            {name: builder.build_system(settings, DEPTH) for name, settings in systems.items()}
            if is_deep
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
    """Ask every system each question of *dataset*, and compare the systems with the baseline.

    The questions are asked one at a time, so that the times are comparable. A system reports a
    failure as `Run.error`. All figures leave out a question on which a system failed, and the notes
    mention the question. The error is raised if a system fails on each of its first `MOST_FAILED`
    questions, or on `MOST_IN_A_ROW` questions in a row. If a system raises an exception, the
    exception passes through, with a note that names the system and the question.

    Args:
        systems: The systems by name.
        dataset: The judged questions.
        baseline: The name of the system to compare the others with.
        deep: The same systems, each asking for a hundred passages, to measure R@100.
        notes: Sentences to put before the comparison's own notes.
        seed: The seed of the statistical tests and intervals.
        progress: Receives the system's name, the number of questions done and the total number.

    Raises:
        ConfigError: No system is called *baseline*, there are no questions, a question is
            blank, or no passage is relevant.
        MissingExtra: ir-measures or scipy is not installed.
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
    # A question on which one system failed counts for no system, so the others are not asked it.
    for name, system in systems.items():
        runs[name], seconds[name] = _run_and_time_system(name, system, dataset, progress)
        dataset = _drop_failed_questions(name, runs[name], dataset, failures)
    for name, system in (deep or {}).items():
        deep_runs[name], _ = _run_and_time_system(f"{name}, deep", system, dataset, progress)
        dataset = _drop_failed_questions(name, deep_runs[name], dataset, failures)
    answered = [question.id for question in dataset.questions]
    runs = {
        name: {question_id: system_runs[question_id] for question_id in answered}
        for name, system_runs in runs.items()
    }
    measured = {
        name: evaluate(dataset.qrels, _collect_passage_ids(system_runs))
        for name, system_runs in runs.items()
    }
    for name, system_runs in deep_runs.items():
        measured[name] = PerQuery(
            {
                **measured[name].values,
                **evaluate(dataset.qrels, _collect_passage_ids(system_runs), DEEP).values,
            }
        )
    scores = {}
    for name, system_runs in runs.items():
        # If a system does not report its added time, its time beyond the baseline's on the same
        # question counts.
        extra_seconds = {
            question_id: seconds[name][question_id] - seconds[baseline][question_id]
            for question_id in system_runs
        }
        added = [
            extra_seconds[question_id] if run.seconds_added is None else run.seconds_added
            for question_id, run in system_runs.items()
        ]
        added_ms = Percentiles.of([1e3 * added_seconds for added_seconds in added])
        score = _score_system(
            name, system_runs, measured[name], measured[baseline], added_ms=added_ms, seed=seed
        )
        scores[name] = replace(score, failed=len(failures.get(name, ())))
    # The baseline is not tested against itself, so it does not count as a test.
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
        notes=(*notes, *_describe_failures(failures, whole), *_list_warnings(dataset, runs)),
        seed=seed,
        # The hashes include failed questions, so that runs on the same data have the same hashes.
        data_hash=whole.data_hash,
        fingerprints=whole.fingerprints,
    )


def require_measurable(dataset: Dataset) -> None:
    """Raise `ConfigError` if *dataset* cannot be measured.

    A data set must have at least one question, no blank question, and at least one relevant
    passage.
    """
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
    if not any(map(_has_relevant_passage, dataset.qrels.values())):
        raise ConfigError(
            f"the data set {dataset.name} must have a passage with a grade above 0", path="qrels"
        )


def require_extras() -> None:
    """Raise `MissingExtra` if a package that measuring needs is not installed."""
    evaluate({}, {})
    difference(())


# --- a live function ------------------------------------------------------------------------------


def _choose_systems(
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] | None,
    *,
    has_model: bool,
    is_wrapped: bool,
) -> dict[str, Mapping[str, Any]]:
    """Return the settings of each system to compare, keyed by system name, baseline first.

    Args:
        systems: A mapping from system name to settings, or a sequence of known names. ``None``
            selects the default systems.
        has_model: Whether a model is available. If so, the defaults include the systems that ask a
            model.
        is_wrapped: Whether the user's function is already wrapped. If so, the system ``yours`` is
            added, which keeps the function's own settings.

    Raises:
        ConfigError: A name is unknown or reserved.
    """
    if isinstance(systems, Mapping):
        reserved = {BASELINE, OWN} if is_wrapped else {BASELINE}
        # A reserved name is allowed with its usual settings, as in a copy of SYSTEMS.
        if reserved_names := [
            name for name in systems if name in reserved and systems[name] != SYSTEMS.get(name)
        ]:
            raise ConfigError(
                f"the name {reserved_names[0]!r} is reserved; rename the system", path="systems"
            )
        selected = {**chosen(()), **systems}
    elif isinstance(systems, str):
        selected = chosen([systems])
    else:
        selected = chosen(systems if systems is not None else USUAL if has_model else FREE)
    return {**selected, OWN: {}} if is_wrapped else selected


def _build_dataset(
    name: str, queries: Mapping[str, str] | Iterable[Question], qrels: Qrels
) -> Dataset:
    """Return a data set with the judged questions among *queries*, but without passages.

    Raises `ConfigError` if a query is not valid, or if a judgement names an unknown question.
    """
    questions: list[Any] = (
        [Question(*entry) for entry in queries.items()]
        if isinstance(queries, Mapping)
        else list(queries)
    )
    for number, question in enumerate(questions, 1):
        if not (
            isinstance(question, Question)
            and all(isinstance(value, str) for value in (question.id, question.text))
        ):
            raise ConfigError(
                f"query {number} must be a Question, or text under an id that is text",
                path="queries",
            )
    question_ids = {question.id for question in questions}
    if len(question_ids) < len(questions):
        raise ConfigError("two of the queries have the same id", path="queries")
    if unknown := [id_ for id_ in qrels if id_ not in question_ids]:
        raise ConfigError(
            f"{len(unknown)} judged questions are not among the queries, the first is"
            f" {unknown[0]!r}",
            path="qrels",
        )
    judged = tuple(question for question in questions if question.id in qrels)
    grades = {question.id: _parse_grades(question.id, qrels[question.id]) for question in judged}
    return Dataset(name, (), judged, grades)


def _parse_grades(question_id: str, grades: Any) -> dict[str, int]:
    """Return the grades of one question as a dict; raises `ConfigError` if a grade is not valid."""
    if not isinstance(grades, Mapping) or not all(
        isinstance(id_, str) and isinstance(grade, int) and abs(grade) <= HIGHEST_GRADE
        for id_, grade in grades.items()
    ):
        raise ConfigError(
            f"the judgements of {question_id!r} must be a mapping of passage ids to whole numbers"
            f" of at most {HIGHEST_GRADE:,}, not {type(grades).__name__}; for example"
            " {'passage-1': 1}",
            path="qrels",
        )
    return dict(grades)


# --- figures --------------------------------------------------------------------------------------


def _run_and_time_system(
    system_name: str, system: System, dataset: Dataset, progress: Progress | None
) -> tuple[dict[str, Run], dict[str, float]]:
    """Ask *system* every question in *dataset*, and return the results and their times.

    Returns:
        The system's result for each question, by question id.
        The seconds that the system took for each question, by question id.
    """
    runs: dict[str, Run] = {}
    seconds: dict[str, float] = {}
    failed_in_a_row, total = 0, len(dataset.questions)
    for done, question in enumerate(dataset.questions, 1):
        start = perf_counter()
        try:
            answer = system(question)
        except Exception as error:
            error.add_note(
                f"The system {system_name!r} raised this on the question {question.id!r}."
            )
            raise
        seconds[question.id] = perf_counter() - start
        run = answer if isinstance(answer, Run) else Run(tuple(id_ for id_, _ in answer))
        runs[question.id] = run
        failed_in_a_row = 0 if run.error is None else failed_in_a_row + 1
        # Stop early if the system has never worked, and later if it stays down.
        if run.error is not None and (
            failed_in_a_row == min(MOST_FAILED, total) == done or failed_in_a_row == MOST_IN_A_ROW
        ):
            run.error.add_note(
                f"The system {system_name!r} failed on {failed_in_a_row} questions in a row."
            )
            raise run.error
        if progress is not None:
            progress(system_name, done, total)
    return runs, seconds


def _drop_failed_questions(
    system_name: str,
    runs: Mapping[str, Run],
    dataset: Dataset,
    failures: dict[str, dict[str, Exception]],
) -> Dataset:
    """Return *dataset* without the questions on which the system called *system_name* failed.

    Adds the errors to *failures*. Raises the first error if the system failed on every question.
    """
    errors = {question_id: run.error for question_id, run in runs.items() if run.error is not None}
    if not errors:
        return dataset
    failures[system_name] = {**failures.get(system_name, {}), **errors}
    if len(errors) == len(dataset.questions):
        error = next(iter(errors.values()))
        error.add_note(f"The system {system_name!r} failed on every question that was left.")
        raise error
    return dataset.only(dataset.qrels.keys() - errors.keys())


def _describe_failures(
    failures: Mapping[str, Mapping[str, Exception]], dataset: Dataset
) -> Iterator[str]:
    """Yield a sentence on the questions that failed; nothing if no question failed."""
    if not failures:
        return
    count = sum(map(len, failures.values()))
    descriptions = [
        f"{name} on {question_id!r} ({describe_error(error)})"
        for name, errors in failures.items()
        for question_id, error in errors.items()
    ]
    remainder = f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
    yield (
        f"{count} of {len(dataset.questions)} questions failed and are not counted: "
        f"{'; '.join(descriptions[:_MOST_NAMED])}{remainder}."
    )


def describe_error(error: Exception) -> str:
    """Return the type and message of *error* on one line, cut to a readable length."""
    # An error may quote a whole response, so it is cut before its white space is.
    text = " ".join(str(error)[: 4 * _MOST_CHARS].split())
    text = text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _collect_passage_ids(runs: Mapping[str, Run]) -> dict[str, Sequence[str]]:
    return {question: run.ids for question, run in runs.items()}


def _score_system(
    system_name: str,
    runs: Mapping[str, Run],
    measures: PerQuery,
    baseline_measures: PerQuery,
    *,
    added_ms: Percentiles,
    seed: int,
) -> SystemScore:
    """Return the figures of the system called *system_name*, compared with the baseline.

    The p-value is not yet corrected for the number of systems.
    """
    gains = {
        question: measures.values[PRIMARY][question] - baseline_measures.values[PRIMARY][question]
        for question in runs
    }
    costs = [run.cost_usd for run in runs.values()]
    degraded = sum(run.degraded for run in runs.values())
    return SystemScore(
        name=system_name,
        means=measures.means,
        difference=difference(list(gains.values()), seed=seed),
        hurt_rate=sum(gain < -TOLERANCE for gain in gains.values()) / len(gains),
        helped_rate=sum(gain > TOLERANCE for gain in gains.values()) / len(gains),
        added_ms=added_ms,
        stages_ms=_summarise_stage_times(runs),
        llm_calls=sum(run.llm_calls for run in runs.values()),
        input_tokens=sum(run.input_tokens for run in runs.values()),
        output_tokens=sum(run.output_tokens for run in runs.values()),
        # If every answer is degraded, the model never replied: its real cost is not known.
        cost_usd=(
            None
            if None in costs or degraded == len(runs)
            else sum(cost for cost in costs if cost is not None)
        ),
        degraded=degraded,
        gains=gains,
        per_query=measures,
        runs=runs,
    )


def _summarise_stage_times(runs: Mapping[str, Run]) -> dict[str, Percentiles]:
    """Return the percentiles of each stage's time in milliseconds, by the stage's name."""
    stages: dict[str, list[float]] = {}
    for run in runs.values():
        for name, ms in run.stages.items():
            stages.setdefault(name, []).append(ms)
    return {name: Percentiles.of(values) for name, values in stages.items()}


def _list_warnings(dataset: Dataset, runs: Mapping[str, Mapping[str, Run]]) -> Iterator[str]:
    """Yield a warning for each reason to doubt the figures, such as degraded answers."""
    count = len(dataset.questions)
    if unanswerable := sum(not _has_relevant_passage(grades) for grades in dataset.qrels.values()):
        yield (
            f"{unanswerable} of {count} questions have no relevant passage in their judgements; "
            "they count as 0 for every system."
        )
    if not any(
        not dataset.qrels[question_id].keys().isdisjoint(run.ids)
        for system_runs in runs.values()
        for question_id, run in system_runs.items()
    ):
        yield (
            "No passage that a system found is judged; check that the judgements use the ids that"
            " the search returns."
        )
    for name, system_runs in runs.items():
        if degraded := sum(run.degraded for run in system_runs.values()):
            yield (
                f"{name}: {degraded} of {count} answers are degraded, mostly as the model did not"
                " reply. They count with what was found without it, and their time and price are"
                " too low."
            )


def _has_relevant_passage(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())
