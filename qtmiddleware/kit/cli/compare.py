"""``qtm compare``: ask several systems the same questions and compare the results side by side."""

from __future__ import annotations

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
    Sets,
    open_progress_bar,
    show_warnings,
    write_json,
)
from qtmiddleware.kit.cli.environment import NO_MODEL, load_config
from qtmiddleware.kit.cli.query import SHOWN_ANYWAY, TopK, open_middleware
from qtmiddleware.kit.cli.reports import check_report, write_report
from qtmiddleware.kit.cli.terminal import FAILED, write_note, write_output
from qtmiddleware.kit.evaluation import (
    BASELINE,
    OWN,
    AskedQuestion,
    Question,
    SideBySide,
    SystemAnswer,
    ask_systems,
    asks_a_model,
    load_questions,
    report_ranking,
)
from qtmiddleware.kit.evaluation.judge import MOST_SYSTEMS
from qtmiddleware.kit.evaluation.side_by_side import SHOWN
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
            help="CSV or JSON file of questions and ideal answers, or the folder of a data set.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the judge's rankings to this file: .md, .json or .html."
        ),
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Compare systems side by side.

    The command shows what each system searched and found, its time and cost, and why
    passages moved compared with plain search (raw). No judgements are needed. The system
    yours uses your config or, with --function, your wrapped function.

    With --reference or --questions, the model ranks the systems' answers against the
    ideal answers. The exit code is 1 if a system or the judge failed.
    """
    entries = _list_questions(question, reference, questions)
    is_judged = any(entry.reference for entry in entries)
    if report is not None:
        if not is_judged:
            raise ConfigError(
                "--report needs ideal answers; pass --reference or --questions", path="--report"
            )
        check_report(report)
    # What the user's function prints is no part of the result.
    with _open_search(function, config, sets) as (base, loaded), redirect_stdout(sys.stderr):
        has_model = base.middleware.has_model
        names = _choose_system_names(systems, loaded, has_model=has_model, is_judged=is_judged)
        if not has_model:
            if answers or is_judged:
                raise ConfigError(NO_MODEL, path="answers")
            write_note(f"{NO_MODEL} Only systems that need no model are compared.")
        with open_progress_bar() as update:
            comparison = _ask_systems(
                function,
                base,
                entries,
                names,
                answers=answers,
                arguments=dict(map(parse_argument, arguments or ())),
                top_k=top_k,
                progress=update,
            )
    values = _build_comparison_dict(comparison)
    if report is not None:
        write_report(report, report_ranking(comparison), values)
    if json_output:
        write_json(values)
    else:
        _show(comparison)
    failed = any(_has_failed(it) for asked in comparison.questions for it in asked.systems)
    if failed or (comparison.ranked is not None and comparison.ranked.failed):
        raise typer.Exit(FAILED)


def _list_questions(question: str | None, reference: str, path: Path | None) -> list[Question]:
    if (question is None) == (path is None):
        raise ConfigError("pass a question or --questions FILE", path="question")
    if path is None:
        metadata = {"answer": reference} if reference else {}
        return [Question("question", question or "", metadata=metadata)]
    if reference:
        raise ConfigError("--reference cannot be used with --questions", path="--questions")
    return list(load_questions(path).questions)


def _show(comparison: SideBySide) -> None:
    for position, asked in enumerate(comparison.questions):
        if position:
            write_output()
        show_question_results(
            asked,
            comparison.ranking(asked.question),
            is_one_of_several_questions=len(comparison.questions) > 1,
        )
    if comparison.ranked is not None:
        show_ranking(comparison.ranked)


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
