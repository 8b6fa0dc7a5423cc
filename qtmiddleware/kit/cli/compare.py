"""``qtm compare``: one question, or a file of them, put to every system side by side, from the user's own index."""

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
from qtmiddleware.kit.cli.bench import split_names
from qtmiddleware.kit.cli.check import (
    Arguments,
    InPlaceOfIndex,
    find_function,
    read_argument,
    wrap_function,
)
from qtmiddleware.kit.cli.comparison import show_question, show_ranked
from qtmiddleware.kit.cli.console import (
    AsJson,
    ConfigFile,
    History,
    Sets,
    as_json,
    show_progress,
    show_warnings,
    to_messages,
)
from qtmiddleware.kit.cli.environment import NO_MODEL, load_config
from qtmiddleware.kit.cli.query import SHOWN_ANYWAY, Filter, TopK, open_middleware, parse_filter
from qtmiddleware.kit.cli.reports import check_places, require_jinja, write_report
from qtmiddleware.kit.cli.terminal import FAILED, note, say
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
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

_DECIDING: Final = frozenset(
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
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON file of questions and ideal answers, or the folder of a data set.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Same as --questions, which may then be a number.")
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
        typer.Option(metavar="FILE", help="Write the judge's rankings to this HTML file."),
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
    asked = _read_questions(question, reference, history, _find_file(questions, data, limit))
    given = _read_arguments(function, arguments, condition)
    is_judged = any(one.reference for one in asked)
    if report is not None:
        if not is_judged:
            raise ConfigError(
                "--report needs ideal answers; pass --reference or --questions", path="--report"
            )
        require_jinja()
        check_places(report.parent, [report.name], "--report")
    with _open(function, config, sets) as (base, loaded), redirect_stdout(sys.stderr):
        has_model = base.middleware._components.has_model
        names = _choose_systems(systems, loaded, has_model=has_model, is_judged=is_judged)
        if not has_model:
            if answers or is_judged:
                raise ConfigError(NO_MODEL, path="answers")
            note(f"{NO_MODEL} Only systems that need no model are compared.")
        with show_progress() as update, _limit_time(timeout, function) as restart:

            def show(name: str, done: int, total: int) -> None:
                # The judge has time limits of its own.
                restart(0 if name == JUDGING or (name == names[-1] and done == total) else timeout)
                update(name, done, total)

            found = _ask(
                function,
                base,
                asked,
                names,
                answers=answers,
                arguments=given,
                top_k=top_k,
                repeats=repeats,
                seed=seed,
                progress=show,
            )
    _tell(found, report, json_output=json_output)


def _read_questions(
    question: str | None,
    reference: str,
    history: list[str] | None,
    file: tuple[Path | None, int | None],
) -> list[Question]:
    """The one question that was given, or those of the file."""
    path, limit = file
    if (question is None) == (path is None):
        raise ConfigError("pass a question or --questions FILE", path="question")
    if path is None:
        turns = tuple(Message(turn["role"], turn["content"]) for turn in to_messages(history))
        return [
            Question("question", question or "", turns, {"answer": reference} if reference else {})
        ]
    if reference or history:
        raise ConfigError(
            "--reference and --history cannot be used with --questions", path="--questions"
        )
    return list(load_questions(path))[:limit]


def _read_arguments(
    function: str | None, arguments: list[str] | None, condition: str | None
) -> dict[str, Any]:
    """What is passed on with every question: arguments of the user's own function, or the index's filter."""
    if function is None and arguments:
        raise ConfigError("--arg needs --function", path="--arg")
    if function is not None and condition is not None:
        raise ConfigError(
            "--filter cannot be used with --function; use --arg name=value", path="--filter"
        )
    wanted = parse_filter(condition)
    return dict(map(read_argument, arguments or ())) | (
        {} if wanted is None else {"filter": wanted}
    )


def _tell(found: SideBySide, report: Path | None, *, json_output: bool) -> None:
    """Write and show what was found; the exit code is 1 where a system, or the judge, failed."""
    if report is not None:
        from qtmiddleware.kit.evaluation.reporting import ranking_page

        write_report(report.parent, {report.name: ranking_page(found)})
    if json_output:
        as_json(to_dict(found))
    else:
        for at, one in enumerate(found.questions):
            if at:
                say()
            show_question(one, found.ranking(one.question), is_one_of_many=len(found.questions) > 1)
        if found.ranked is not None:
            show_ranked(found.ranked)
    if any(map(_has_failed, (one for row in found.questions for one in row.systems))) or (
        found.ranked is not None and found.ranked.failed
    ):
        raise typer.Exit(FAILED)


def _has_failed(one: SystemAnswer) -> bool:
    """Whether there is an error, or nothing that can be read."""
    degradations = () if one.retrieval is None else one.retrieval.degradations
    return one.error is not None or any(
        (it.stage, it.reason) == ("response", "unreadable") for it in degradations
    )


def _find_file(
    questions: str | None, data: Path | None, limit: int | None
) -> tuple[Path | None, int | None]:
    """The file of questions and how many of them; beside --data, which came first, --questions is the number."""
    if questions is None or data is None:
        return Path(questions) if questions is not None else data, limit
    if not questions.isdecimal() or not int(questions):
        raise ConfigError(
            "with --data, --questions must be a number, not a file", path="--questions"
        )
    return data, int(questions)


@contextmanager
def _open(
    function: str | None, config: str | None, sets: list[str] | None
) -> Iterator[tuple[Any, Config]]:
    """What is asked, wrapped, and its config: the function of the user's own, or the index."""
    if function is None:
        loaded = load_config(config, sets)
        with open_middleware(loaded, config) as middleware:
            yield middleware.retriever, loaded
        return
    with redirect_stdout(sys.stderr):
        fn = find_function(function)
    # What is warned of is logged too, which is shown.
    with (
        show_warnings(without=SHOWN_ANYWAY),
        catch_warnings(action="ignore", category=SetupWarning),
        wrap_function(fn, config, sets, {}) as wrapped,
    ):
        loaded = wrapped.middleware.config
        # Whoever wrapped it has a system of their own, whatever it is made of.
        own = {"transformationType": loaded.settings.transformation_type}
        yield wrapped, loaded.overridden(own) if isinstance(fn, Wrapped | Bound) else loaded


def _ask(
    function: str | None, base: Any, asked: list[Question], names: list[str], **options: Any
) -> SideBySide:
    """Ask; what a function of the user's own raises when it is called as it is, is told in a line."""
    try:
        return ask_systems(base, asked, names, **options)
    except (QtMiddlewareError, TimeoutError):
        raise
    except Exception as error:
        what = function or "the index"
        raise WrapError(f"{what} raised {type(error).__name__}: {error}") from error


@contextmanager
def _limit_time(seconds: float, function: str | None) -> Iterator[Any]:
    """Raise `TimeoutError` in what runs here *seconds* after the start, or so long after what is yielded was given.

    0 stands for any time. By a signal, as nothing else ends a function that hangs; where there is
    none, Ctrl-C has to.
    """
    if not hasattr(signal, "setitimer"):
        yield lambda _: None
        return

    def give_up(*_: object) -> None:
        raise TimeoutError(
            f"no answer from {function or 'the index'} within {seconds:g} seconds (--timeout)"
        )

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield lambda left: signal.setitimer(signal.ITIMER_REAL, left, left)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sets_something(loaded: Config) -> bool:
    """Whether the config sets anything of its own that decides what is found."""
    return any(
        origin != "default" and key.partition(".")[0] in _DECIDING
        for key, _, origin in loaded.rows()
    )


def _choose_systems(
    named: str | None, loaded: Config, *, has_model: bool, is_judged: bool
) -> list[str]:
    """The names of the systems; one that cannot be asked is refused where it was named."""
    if named is None:
        shown = [name for name in SHOWN if has_model or not asks_a_model(name)]
        is_askable = has_model or loaded.settings.transformation_type == "none"
        return [*shown, OWN] if sets_something(loaded) and is_askable else shown
    names = split_names(named)
    if not has_model and (asking := [name for name in names if name != OWN and asks_a_model(name)]):
        raise ConfigError(f"{', '.join(asking)} cannot be compared. {NO_MODEL}", path="systems")
    if is_judged and len({BASELINE, *names}) > MOST_SYSTEMS:
        raise ConfigError(
            f"a judge ranks at most {MOST_SYSTEMS} systems, not {len(names)}", path="systems"
        )
    return names


def to_dict(found: SideBySide) -> dict[str, Any]:
    """All of it as plain data."""
    rows = []
    for row in found.questions:
        ranking = found.ranking(row.question)
        rows.append(
            {
                "id": row.question.id,
                "question": row.question.text,
                "reference": row.question.reference or None,
                "systems": [_describe_system(row, one.system) for one in row.systems],
                "ranking": None if ranking is None else ranking.to_dict(),
            }
        )
    return {"questions": rows, "ranked": None if found.ranked is None else found.ranked.to_dict()}


def _describe_system(row: AskedQuestion, name: str) -> Mapping[str, Any]:
    one, moved = row[name], row.explain(name)
    outcome = Outcome(
        question=row.question.text,
        retrieval=one.retrieval,
        answer=one.answer,
        error=one.error,
        seconds=one.seconds,
    )
    return {
        "system": name,
        **outcome.to_dict(),
        "movement": None if moved is None else moved.to_dict(),
    }
