"""Compare systems on judged questions, such as your function with several settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import fmean, median
from typing import Any, Final, Unpack

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.dataset import Dataset, Qrels, Question, build_dataset
from qtmiddleware.kit.evaluation.formatting import to_json
from qtmiddleware.kit.evaluation.measures import (
    PRIMARY,
    TOP_K,
    Difference,
    PerQuery,
    difference,
    evaluate,
    holm,
)
from qtmiddleware.kit.evaluation.systems import (
    BASELINE,
    FREE,
    OWN,
    USUAL,
    Run,
    Settings,
    chosen,
    open_system,
)
from qtmiddleware.preprocessing.text import format_count
from qtmiddleware.wrapping.engine import check_options
from qtmiddleware.wrapping.query_middleware import WrapOptions
from qtmiddleware.wrapping.wrapped import Wrapped

# If a system fails on this many questions in a row, its error is raised. Fewer are tolerated,
# because an index that is down may soon be up again.
MOST_FAILED: Final = 10
# At least one of this many first questions must find a judged passage.
ASKED_FOR_IDS: Final = 20
# And of all, if there are at least so many.
LEAST_FOR_IDS: Final = 5
_MOST_NAMED: Final = 3

# A callback that receives the system's name, the number of questions done and their total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class SystemScore:
    """The figures of one system.

    Attributes:
        per_query: The values of all measures, by the measure's name and question id.
        difference: The gain over the baseline.
        runs: The system's results, by question id.
        failed: The number of questions on which the system failed. No figure includes them.
    """

    name: str
    per_query: PerQuery = field(repr=False)
    difference: Difference
    runs: Mapping[str, Run] = field(repr=False)
    failed: int = 0

    @property
    def means(self) -> dict[str, float]:
        """The mean of each measure."""
        return {name: fmean(values.values()) for name, values in self.per_query.items()}

    @property
    def hurt_rate(self) -> float:
        """The share of questions that got worse."""
        return self.difference.worse / len(self.runs)

    @property
    def helped_rate(self) -> float:
        """The share of questions that got better."""
        return self.difference.better / len(self.runs)

    @property
    def added_ms(self) -> float:
        """The median time added to the plain search, in milliseconds."""
        return 1e3 * median(run.seconds_added for run in self.runs.values())

    @property
    def llm_calls(self) -> int:
        """The number of model calls."""
        return sum(run.llm_calls for run in self.runs.values())

    @property
    def call_rate(self) -> float:
        """The share of questions for which the model was called."""
        return sum(run.llm_calls > 0 for run in self.runs.values()) / len(self.runs)

    @property
    def calls_per_question(self) -> float:
        """The mean number of model calls."""
        return self.llm_calls / len(self.runs)

    @property
    def searches_per_question(self) -> float | None:
        """The mean number of searches; ``None`` if it is not known."""
        counts = [run.searches for run in self.runs.values()]
        return None if None in counts else fmean(count or 0 for count in counts)

    @property
    def degraded(self) -> int:
        """The number of questions on which a step failed or was skipped."""
        return sum(run.degraded for run in self.runs.values())

    @property
    def cost_usd(self) -> float | None:
        """The model's price in US dollars; ``None`` if it is not known."""
        costs = [run.cost_usd for run in self.runs.values() if run.cost_usd is not None]
        # If every answer is degraded, no reply was paid for, and the price of replies is not known.
        return sum(costs) if len(costs) == len(self.runs) > self.degraded else None

    @property
    def usd_per_thousand(self) -> float | None:
        """The model's price for 1,000 questions, in US dollars; ``None`` if it is not known."""
        cost = self.cost_usd
        return None if cost is None else 1_000 * cost / len(self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict, ready for JSON. It contains no texts."""
        values = to_json(self, *_FIGURES, leave_out=("runs", "per_query"))
        worst = [{"id": id_, "gain": gain} for id_, gain in self.difference.worst()]
        return {**values, "worst": worst, "perQuery": dict(self.per_query)}


# The figures that the JSON has beside the fields.
_FIGURES: Final = (
    *("means", "hurt_rate", "helped_rate", "added_ms", "llm_calls", "cost_usd", "degraded"),
    *("call_rate", "searches_per_question", "usd_per_thousand"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of several systems on the same questions.

    Attributes:
        dataset: The name of the data set.
        passages: The number of passages; ``None`` if it is not known.
        questions: The number of questions that every figure is based on.
        baseline: The name of the system that the others are compared with.
        notes: Sentences on what the figures do not show, such as failed questions.
        fingerprints: The hashes of questions, judgements and passages, as in
            `Dataset.fingerprints`.
        asked: The ids of all questions, with those that failed.
        errors: The exceptions on the failed questions. `to_dict` leaves them out, because their
            messages may quote a question.
    """

    dataset: str
    passages: int | None
    questions: int
    baseline: str
    systems: tuple[SystemScore, ...]
    notes: tuple[str, ...] = ()
    seed: int = 0
    fingerprints: Mapping[str, str] = field(default_factory=dict, repr=False)
    asked: frozenset[str] = field(default=frozenset(), repr=False)
    errors: tuple[Exception, ...] = field(default=(), repr=False)

    def __getitem__(self, name: str) -> SystemScore:
        return {system.name: system for system in self.systems}[name]

    @property
    def challengers(self) -> tuple[SystemScore, ...]:
        """All systems but the baseline."""
        return tuple(system for system in self.systems if system.name != self.baseline)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a dict, ready for JSON. It contains no texts."""
        values = to_json(self, leave_out=("asked", "errors"))
        return {**values, "version": version("qtmiddleware")}


def compare(
    fn: Callable[..., Any],
    queries: Mapping[str, str] | Iterable[Question],
    qrels: Qrels,
    systems: Mapping[str, Settings] | Sequence[str] | None = None,
    *,
    client: Any = None,
    arguments: Mapping[str, Any] | None = None,
    top_k: int | None = TOP_K,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[WrapOptions],
) -> Comparison:
    """Measure *fn* on judged questions, first unchanged, then with each system's settings.

    All systems are compared with ``off``, the unchanged *fn*. If *fn* fails on a question, all
    figures leave out the question, and `Comparison.errors` says why. If *fn* fails on ten questions
    in a row, its exception is raised.

    Args:
        fn: Your retrieval function, wrapped or not. Its first argument is the question. If *fn* is
            wrapped, each system's settings override the settings of *fn*, and the system ``yours``
            has the settings of *fn*.
        queries: The questions' texts by id, or `Question`s, which may have a history.
        qrels: The grades, by question id and passage id.
        systems: Settings by the system's name, or names from `SYSTEMS`. Default: the systems that
            need no model; with *client* or a wrapped *fn*, also the systems that need a model.
        client: The model client for a plain *fn*.
        arguments: Other keyword arguments for every call of *fn*.
        top_k: The number of passages to ask for, if *fn* has a parameter for it. ``None``: the
            default of *fn*.
        seed: The seed of the statistical tests and intervals.
        progress: Receives the system's name, the number of questions done and the total number.
        options: Options for wrapping a plain *fn*, as in `WrapOptions`.

    Raises:
        ConfigError: A system is unknown, settings are not valid, the judgements name unknown
            questions, results have no ids, or none of these ids is in the judgements.
        WrapError: *fn* cannot be wrapped, or is asynchronous while an event loop is running.
        MissingExtra: ir-measures or scipy is not installed.
    """
    check_options("compare", options, WrapOptions.__optional_keys__)
    data = build_dataset(queries, qrels)
    is_wrapped = isinstance(fn, Wrapped)
    if systems is None:
        systems = USUAL if client is not None or is_wrapped else FREE
    settings = chosen(systems)
    if is_wrapped:
        # Your own settings come last.
        if settings.pop(OWN, {}):
            raise ConfigError(f"the name {OWN!r} is reserved; rename the system", path="systems")
        settings[OWN] = {}
    with open_system(fn, client=client, arguments=arguments, top_k=top_k, **options) as system:
        return measure(system.with_each(settings), data, seed=seed, progress=progress)


def measure(
    systems: Mapping[str, Callable[[Question], Run]],
    dataset: Dataset,
    *,
    notes: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Ask every system each question of *dataset*, and compare the systems with ``off``.

    The questions are asked one at a time, so that the times are comparable. A system reports a
    failure as `Run.error`. All figures leave out a question on which a system failed, and the notes
    mention the question. An exception that a system raises passes through.

    Args:
        systems: The systems by name, with ``off`` among them.
        dataset: The judged questions.
        notes: Sentences to put before the comparison's own notes.
        seed: The seed of the statistical tests and intervals.
        progress: Receives the system's name, the number of questions done and the total number.

    Raises:
        ConfigError: There are no questions, a question is blank, no passage is relevant, or the
            first `ASKED_FOR_IDS` questions, or all, find no judged passage.
        MissingExtra: ir-measures or scipy is not installed.
    """
    require_measurable(dataset)
    runs: dict[str, dict[str, Run]] = {}
    failures: dict[str, dict[str, Exception]] = {}
    whole = dataset
    # A question on which one system failed counts for no system, so the others are not asked it.
    for name, system in systems.items():
        runs[name] = _run_system(name, system, dataset, progress)
        errors = {id_: run.error for id_, run in runs[name].items() if run.error is not None}
        failures[name] = errors
        dataset = dataset.only(runs[name].keys() - errors.keys())
    # Ids made of texts are not the user's.
    has_texts = any(question.relevant_texts for question in whole.questions)
    if len(whole.questions) >= LEAST_FOR_IDS and not (whole.passages or has_texts):
        _refuse_other_ids([run for by_id in runs.values() for run in by_id.values()], whole)
    answered = [question.id for question in dataset.questions]
    runs = {name: {id_: by_id[id_] for id_ in answered} for name, by_id in runs.items()}
    measured = {
        name: evaluate(dataset.qrels, {id_: run.ids for id_, run in by_id.items()})
        for name, by_id in runs.items()
    }
    base = measured[BASELINE][PRIMARY]
    # The baseline is not tested against itself, so it does not count as a test.
    differences = holm(
        {
            name: difference({id_: values[PRIMARY][id_] - base[id_] for id_ in answered}, seed=seed)
            for name, values in measured.items()
            if name != BASELINE
        }
    )
    scores = [
        SystemScore(
            name, measured[name], differences.get(name, Difference()), by_id, len(failures[name])
        )
        for name, by_id in runs.items()
    ]
    return Comparison(
        dataset=dataset.name,
        passages=len(dataset.passages) or None,
        questions=len(dataset.questions),
        baseline=BASELINE,
        systems=tuple(scores),
        notes=(*notes, *_describe_failures(failures, whole), *_list_warnings(dataset, scores)),
        seed=seed,
        # The hashes include failed questions, so that runs on the same data have the same hashes.
        fingerprints=whole.fingerprints,
        asked=frozenset(question.id for question in whole.questions),
        errors=tuple(error for errors in failures.values() for error in errors.values()),
    )


def require_measurable(dataset: Dataset) -> None:
    """Raise `ConfigError` if *dataset* cannot be measured, and `MissingExtra` without packages.

    A data set must have at least one question, no blank question, and at least one relevant
    passage.
    """
    subject = f"the data set {dataset.name}"
    if not dataset.questions:
        raise ConfigError(f"{subject} has no judged questions", path="dataset", value=dataset.name)
    if blank := [question.id for question in dataset.questions if not question.text.strip()]:
        raise ConfigError(f"the question {blank[0]!r} of {subject} is blank", path="queries")
    if not any(grade > 0 for grades in dataset.qrels.values() for grade in grades.values()):
        raise ConfigError(f"{subject} must have a passage with a grade above 0", path="qrels")
    require_extras()


def require_extras() -> None:
    """Raise `MissingExtra` if a package that measuring needs is not installed."""
    evaluate({}, {})
    difference({})


def _run_system(
    name: str,
    system: Callable[[Question], Run],
    dataset: Dataset,
    progress: Progress | None,
) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    failed_in_a_row, total = 0, len(dataset.questions)
    for done, question in enumerate(dataset.questions, 1):
        run = runs[question.id] = system(question)
        failed_in_a_row = 0 if run.error is None else failed_in_a_row + 1
        if run.error is not None and failed_in_a_row == min(MOST_FAILED, total):
            run.error.add_note(
                f"The system {name!r} failed on {failed_in_a_row} questions in a row."
            )
            raise run.error
        if done == ASKED_FOR_IDS:
            _refuse_other_ids(runs.values(), dataset)
        if progress is not None:
            progress(name, done, total)
    return runs


def _refuse_other_ids(runs: Collection[Run], dataset: Dataset) -> None:
    judged = {id_ for grades in dataset.qrels.values() for id_ in grades}
    found = [id_ for run in runs for id_ in run.ids]
    if found and judged.isdisjoint(found):
        raise ConfigError(
            "the judgements must name passages by the ids that the function returns. They name"
            f" {min(judged)!r}, for example; the function returned {found[0]!r}, and no judged id"
            f" in {len(runs):,} answers. Write its ids into the judgements, or name their"
            " field with keywordEvidence.fields.id",
            path="qrels",
        )


def _describe_failures(
    failures: Mapping[str, Mapping[str, Exception]],
    dataset: Dataset,
) -> Iterator[str]:
    failed = [
        f"{name} on {question_id!r} ({type(error).__name__})"
        for name, errors in failures.items()
        for question_id, error in errors.items()
    ]
    if failed:
        yield (
            f"{len(failed)} of {len(dataset.questions)} questions failed and are not counted:"
            f" {'; '.join(failed[:_MOST_NAMED])}."
        )


def _list_warnings(dataset: Dataset, scores: Sequence[SystemScore]) -> Iterator[str]:
    count = len(dataset.questions)
    found = {id_ for score in scores for run in score.runs.values() for id_ in run.ids}
    relevant = {
        id_ for grades in dataset.qrels.values() for id_, grade in grades.items() if grade > 0
    }
    # Without the passages, a wrong id looks like a passage that every search misses.
    if not dataset.passages and (missing := sorted(relevant - found)):
        shown = ", ".join(id_[:40] for id_ in missing[:_MOST_NAMED])
        yield (
            f"No search returned {format_count(len(missing), 'relevant passage')}: {shown}. Correct"
            " the id if there is no such passage. A text counts if it is a whole passage or 40"
            " characters of one."
        )
    for score in scores:
        if score.degraded:
            yield (
                f"{score.name}: {score.degraded} of {count} answers are degraded, mostly as the"
                " model did not reply. They count, but their time and price are too low."
            )
