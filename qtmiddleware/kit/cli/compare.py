"""``qtm compare``: ask several systems the same questions and compare the results side by side."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Final
from warnings import catch_warnings

import typer

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, QtMiddlewareError, SetupWarning, WrapError
from qtmiddleware.kit.cli.asking import Outcome
from qtmiddleware.kit.cli.bench import split_system_names
from qtmiddleware.kit.cli.check import (
    Arguments,
    InPlaceOfIndex,
    import_function,
    open_wrapped_function,
    parse_argument,
)
from qtmiddleware.kit.cli.comparison import show_question_results, show_ranking
from qtmiddleware.kit.cli.console import (
    AsJson,
    ConfigFile,
    History,
    Sets,
    build_messages,
    open_progress_bar,
    show_warnings,
    write_json,
)
from qtmiddleware.kit.cli.environment import NO_MODEL, load_config
from qtmiddleware.kit.cli.query import SHOWN_ANYWAY, Filter, TopK, open_middleware, parse_filter
from qtmiddleware.kit.cli.reports import check_report, format_json, write_report
from qtmiddleware.kit.cli.terminal import FAILED, write_note, write_output
from qtmiddleware.kit.evaluation import (
    BASELINE,
    AskedQuestion,
    Question,
    SideBySide,
    SystemAnswer,
    ask_systems,
    asks_a_model,
    load_questions,
)
from qtmiddleware.kit.evaluation.compare import OWN
from qtmiddleware.kit.evaluation.ranking import MOST_SYSTEMS
from qtmiddleware.kit.evaluation.side_by_side import JUDGING, SHOWN
from qtmiddleware.types import Message
from qtmiddleware.wrapping.wrapped import Wrapped

_DECISIVE_GROUPS: Final = frozenset(
    {
        "transformationType",
        "maxSubQueries",
        "preprocess",
        "keywordEvidence",
        "escalation",
        "fusion",
        "rerank",
        "scores",
    }
)


def compare_command(
    question: Annotated[
        str | None, typer.Argument(help="Question to ask; without it, use --questions.")
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help=(
                "Systems to compare (names as in bench), separated by commas. Default:"
                f" {', '.join(SHOWN)}."
            )
        ),
    ] = None,
    function: InPlaceOfIndex = None,
    arguments: Arguments = None,
    config: ConfigFile = None,
    sets: Sets = None,
    top_k: TopK = None,
    history: History = None,
    condition: Filter = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Let the model answer from each system's list.")
    ] = False,
    reference: Annotated[
        str,
        typer.Option(
            help=(
                "Ideal answer. The model answers from each system's passages, then ranks these"
                " answers."
            )
        ),
    ] = "",
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON file of questions and ideal answers, or the folder of a data set.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of questions to ask. Default: all.")
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=2,
            help="How often the judge ranks each question, half of the times in reverse order.",
        ),
    ] = 2,
    seed: Annotated[
        int, typer.Option(help="Seed for the order in which the judge sees the answers.")
    ] = 0,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the judge's rankings to this file: .md, .json or .html.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for each system.")] = 120,
    json_output: AsJson = False,
) -> None:
    """Compare all systems on one question.

    The result shows which passages moved and why, the answers, and the time,
    searches, model calls and cost of each system. The command searches your
    index (see 'qtm ingest') or your function (--function). No judgements are needed.

    With an ideal answer (--reference, or "ideal_answer" in the file of
    --questions) a language model answers from each system's passages and ranks
    all answers at once. The system 'yours' is that of your own config.
    """
    entries = _collect_questions(question, reference, history, questions, limit)
    arguments_by_name = _read_search_arguments(function, arguments, condition)
    is_judged = any(entry.reference for entry in entries)
    if report is not None:
        if not is_judged:
            raise ConfigError(
                "--report needs ideal answers; pass --reference or --questions", path="--report"
            )
        check_report(report)
    # What the user's function prints must not mix with the result on stdout.
    with _open_search(function, config, sets) as (base, loaded), redirect_stdout(sys.stderr):
        has_model = base.middleware.has_model
        names = _choose_system_names(systems, loaded, has_model=has_model, is_judged=is_judged)
        if not has_model:
            if answers or is_judged:
                raise ConfigError(NO_MODEL, path="answers")
            write_note(f"{NO_MODEL} Only systems that need no model are compared.")
        with open_progress_bar() as update, _limit_answer_time(timeout, function) as restart:

            def update_progress(system_name: str, finished_count: int, total: int) -> None:
                # The judge has its own time limits. After the last system, nothing is limited.
                restart(
                    0
                    if system_name == JUDGING
                    or (system_name == names[-1] and finished_count == total)
                    else timeout
                )
                update(system_name, finished_count, total)

            comparison = _ask_systems(
                function,
                base,
                entries,
                names,
                answers=answers,
                arguments=arguments_by_name,
                top_k=top_k,
                repeats=repeats,
                seed=seed,
                progress=update_progress,
            )
    _report_comparison(comparison, report, should_write_json=json_output)


def _collect_questions(
    question: str | None,
    reference: str,
    history: list[str] | None,
    path: Path | None,
    limit: int | None,
) -> list[Question]:
    """Return the question on the command line, or the first questions in a file.

    Args:
        question: The question on the command line, or ``None``.
        reference: The ideal answer to *question*.
        history: The messages before *question*.
        path: The path of the file, or ``None``.
        limit: The number of questions to read from the file; ``None`` reads all of them.

    Raises:
        ConfigError: The user gave neither a question nor a file, or gave both, or set *reference*
            or *history* together with a file.
    """
    if (question is None) == (path is None):
        raise ConfigError("pass a question or --questions FILE", path="question")
    if path is None:
        turns = tuple(Message(turn["role"], turn["content"]) for turn in build_messages(history))
        return [
            Question("question", question or "", turns, {"answer": reference} if reference else {})
        ]
    if reference or history:
        raise ConfigError(
            "--reference and --history cannot be used with --questions", path="--questions"
        )
    return list(load_questions(path))[:limit]


def _read_search_arguments(
    function: str | None, arguments: list[str] | None, filter_json: str | None
) -> dict[str, Any]:
    """Return the arguments for every search, from ``--arg`` or from ``--filter``.

    ``--arg`` is for a function, and ``--filter`` is for the index. Raises `ConfigError` if
    ``--arg`` is set without a function, or ``--filter`` with a function.
    """
    if function is None and arguments:
        raise ConfigError("--arg needs --function", path="--arg")
    if function is not None and filter_json is not None:
        raise ConfigError(
            "--filter cannot be used with --function; use --arg name=value", path="--filter"
        )
    metadata_filter = parse_filter(filter_json)
    return dict(map(parse_argument, arguments or ())) | (
        {} if metadata_filter is None else {"filter": metadata_filter}
    )


def _report_comparison(
    comparison: SideBySide, report_file: Path | None, *, should_write_json: bool
) -> None:
    """Show *comparison* and, if *report_file* is set, write the report to that file.

    Raises `typer.Exit` with code 1 if a system or the judge failed.
    """
    if report_file is not None:
        write_report(report_file, _format_report(comparison, report_file.suffix))
    if should_write_json:
        write_json(_build_comparison_dict(comparison))
    else:
        for position, asked_question in enumerate(comparison.questions):
            if position:
                write_output()
            show_question_results(
                asked_question,
                comparison.ranking(asked_question.question),
                is_one_of_several_questions=len(comparison.questions) > 1,
            )
        if comparison.ranked is not None:
            show_ranking(comparison.ranked)
    if any(
        map(
            _has_failed,
            (
                system
                for asked_question in comparison.questions
                for system in asked_question.systems
            ),
        )
    ) or (comparison.ranked is not None and comparison.ranked.failed):
        raise typer.Exit(FAILED)


def _format_report(comparison: SideBySide, ending: str) -> str:
    """Return the report on *comparison* in the format that *ending* names, such as ``.md``."""
    from qtmiddleware.kit.evaluation import reporting

    if ending == ".json":
        return format_json(_build_comparison_dict(comparison))
    if ending == ".md":
        return reporting.ranking_markdown(comparison)
    return reporting.ranking_page(comparison)


def _has_failed(answer: SystemAnswer) -> bool:
    """Return whether the system in *answer* raised an error or returned an unreadable response."""
    degradations = () if answer.retrieval is None else answer.retrieval.degradations
    return answer.error is not None or any(
        (entry.stage, entry.reason) == ("response", "unreadable") for entry in degradations
    )


@contextmanager
def _open_search(
    function: str | None, config_name: str | None, assignments: list[str] | None
) -> Iterator[tuple[Any, Config]]:
    """Yield a wrapped search, and the search's config.

    Wraps the function that *function* names. If *function* is ``None``, yields the search of the
    index.
    """
    if function is None:
        loaded = load_config(config_name, assignments)
        with open_middleware(loaded, config_name) as middleware:
            yield middleware.retriever, loaded
        return
    with redirect_stdout(sys.stderr):
        fn = import_function(function)
    # The package also logs its warnings, and the log is shown. So the warnings are ignored.
    with (
        show_warnings(hidden_events=SHOWN_ANYWAY),
        catch_warnings(action="ignore", category=SetupWarning),
        open_wrapped_function(fn, config_name, assignments, {}) as wrapped,
    ):
        loaded = wrapped.middleware.config
        # A function that was wrapped already counts as the user's own system, whatever its
        # settings. Setting its transformation type makes `has_search_settings` true.
        override = {"transformationType": loaded.settings.transformation_type}
        yield wrapped, loaded.overridden(override) if isinstance(fn, Wrapped) else loaded


def _ask_systems(
    function: str | None,
    search: Any,
    questions: list[Question],
    system_names: list[str],
    **options: Any,
) -> SideBySide:
    """Ask every system every question, and return the results side by side.

    qtmiddleware's errors and `TimeoutError` pass through. Any other exception becomes a `WrapError`
    that names the user's *function*, or the index if *function* is ``None``.
    """
    try:
        return ask_systems(search, questions, system_names, **options)
    except (QtMiddlewareError, TimeoutError):
        raise  # These messages already say what went wrong.
    except Exception as error:
        subject = function or "the index"
        raise WrapError(f"{subject} raised {type(error).__name__}: {error}") from error


@contextmanager
def _limit_answer_time(timeout_seconds: float, function: str | None) -> Iterator[Any]:
    """Raise `TimeoutError` if the ``with`` block runs longer than *timeout_seconds*.

    Yields a function that restarts the time limit with a number of seconds; 0 removes the limit.

    The limit uses a signal, because nothing else can stop a function that hangs. Windows does not
    have this signal, so the limit has no effect on Windows.
    """
    if not hasattr(signal, "setitimer"):
        yield lambda _: None
        return

    def raise_timeout(*_: object) -> None:
        raise TimeoutError(
            f"no answer from {function or 'the index'} within {timeout_seconds:g} seconds"
            " (--timeout)"
        )

    old_handler = signal.signal(signal.SIGALRM, raise_timeout)
    try:
        # The alarm repeats: a function that catches the first exception gets another one.
        signal.setitimer(signal.ITIMER_REAL, timeout_seconds, timeout_seconds)
        yield lambda limit: signal.setitimer(signal.ITIMER_REAL, limit, limit)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)


def has_search_settings(config: Config) -> bool:
    """Return whether *config* changes a setting that affects which passages a search finds."""
    return any(
        origin != "default" and key.partition(".")[0] in _DECISIVE_GROUPS
        for key, _, origin in config.rows()
    )


def _choose_system_names(
    names_option: str | None, config: Config, *, has_model: bool, is_judged: bool
) -> list[str]:
    """Return the names of the systems to compare.

    Args:
        names_option: The value of ``--systems``. If ``None``, the command compares the default
            systems and the user's own config. Without a model, the command omits default systems
            that need a model.
        config: The user's config.
        has_model: Whether a language model is configured.
        is_judged: Whether a judge ranks the answers.

    Raises:
        ConfigError: The user named a system that needs a model without configuring a model, or
            named too many systems for the judge.
    """
    if names_option is None:
        default_systems = [name for name in SHOWN if has_model or not asks_a_model(name)]
        # The user's own config is compared too, if it can differ from the default systems.
        is_askable = has_model or config.settings.transformation_type == "none"
        return (
            [*default_systems, OWN]
            if has_search_settings(config) and is_askable
            else default_systems
        )
    names = split_system_names(names_option)
    if not has_model and (asking := [name for name in names if name != OWN and asks_a_model(name)]):
        raise ConfigError(f"{', '.join(asking)} cannot be compared. {NO_MODEL}", path="systems")
    # The baseline is always asked, even if the user does not name it.
    if is_judged and len({BASELINE, *names}) > MOST_SYSTEMS:
        raise ConfigError(
            f"a judge ranks at most {MOST_SYSTEMS} systems, not {len(names)}", path="systems"
        )
    return names


def _build_comparison_dict(comparison: SideBySide) -> dict[str, Any]:
    """Return *comparison* as a dict, ready for JSON."""
    rows = []
    for asked_question in comparison.questions:
        ranking = comparison.ranking(asked_question.question)
        rows.append(
            {
                "id": asked_question.question.id,
                "question": asked_question.question.text,
                "reference": asked_question.question.reference or None,
                "systems": [
                    _build_system_dict(asked_question, answer.system)
                    for answer in asked_question.systems
                ],
                "ranking": None if ranking is None else ranking.to_dict(),
            }
        )
    return {
        "questions": rows,
        "ranked": None if comparison.ranked is None else comparison.ranked.to_dict(),
    }


def _build_system_dict(asked_question: AskedQuestion, system_name: str) -> Mapping[str, Any]:
    """Return the result of one system for a question as a dict, ready for JSON."""
    answer, movements = asked_question[system_name], asked_question.explain(system_name)
    outcome = Outcome(
        question=asked_question.question.text,
        retrieval=answer.retrieval,
        answer=answer.answer,
        error=answer.error,
        seconds=answer.seconds,
    )
    return {
        "system": system_name,
        **outcome.to_dict(),
        "movement": None if movements is None else movements.to_dict(),
    }
