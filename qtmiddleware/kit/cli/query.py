"""``qtm ask`` and ``qtm query``: ask the index questions from arguments or in a session."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any

import typer

from qtmiddleware.config import Config
from qtmiddleware.errors import InvalidQuery
from qtmiddleware.kit.cli.asking import Outcome, ask_index
from qtmiddleware.kit.cli.console import (
    AsJson,
    ConfigFile,
    History,
    Kind,
    Queries,
    Sets,
    build_messages,
    format_question_heading,
    read_questions,
    show_warnings,
    write_json,
)
from qtmiddleware.kit.cli.environment import (
    NO_MODEL,
    list_default_files,
    load_config,
    report_default_files,
)
from qtmiddleware.kit.cli.session import (
    Keyboard,
    Session,
    choose_transformation_type_or_line,
    find_transformation_type,
    open_keyboard,
)
from qtmiddleware.kit.cli.show import explain_outcome, open_piece_writer, show_outcome
from qtmiddleware.kit.cli.terminal import FAILED, USAGE, write_note, write_output
from qtmiddleware.providers.llms import has_language_model
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

# Warnings that need no note, because the result of each question shows them.
SHOWN_ANYWAY = ("retrieval_degraded", "answer_degraded", "nothing_was_improved")

TopK = Annotated[int | None, typer.Option("--top-k", "-k", min=1, help="Passages per question.")]
NoAnswer = Annotated[
    bool, typer.Option("--no-answer", help="Show only the passages, without an answer.")
]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help="""Filter on metadata, as JSON: '{"source": "a.txt", "page": {"$gte": 3}}'.""",
    ),
]


def ask_command(
    question: Queries = None,
    config: ConfigFile = None,
    sets: Sets = None,
    kind: Kind = None,
    top_k: TopK = None,
    history: History = None,
    condition: Filter = None,
    no_answer: NoAnswer = False,
    explained: Annotated[
        bool, typer.Option("--explain", help="Show how the passages were found.")
    ] = False,
    json_output: AsJson = False,
) -> None:
    """Answer questions from the index.

    Without a language model, or if the model fails, the command shows the
    passages and the exit code is 1. The exit code is 0 even if the passages do
    not hold the answer, and 2 if a question is not valid.
    """
    loaded = load_config(config, sets, transformation_type=kind)
    metadata_filter = parse_filter(condition)
    has_model = has_language_model(loaded.settings)
    if not has_model:
        # Otherwise, every result would report the missing model as a degradation.
        loaded = loaded.overridden({"transformationType": "none"}, origin="no language model")
    settings = loaded.settings
    results: list[Outcome] = []
    with open_middleware(loaded, config) as middleware:
        if not has_model:
            write_note(f"{NO_MODEL} Only passages are shown, ranked by the rules.")
        streams = sys.stdout.isatty() and not json_output
        for text in read_questions(question):
            if not json_output and results:
                write_output()
            if not json_output and (question is None or len(question) > 1):
                write_output(format_question_heading(text))
            with open_piece_writer() as write_piece:
                outcome = ask_index(
                    middleware,
                    text,
                    transformation_type=settings.transformation_type,
                    should_generate_answer=has_model and not no_answer,
                    history=build_messages(history),
                    write_piece=write_piece if streams else None,
                    top_k=top_k,
                    filter=metadata_filter,
                )
            results.append(outcome)
            if json_output:
                continue
            show_outcome(outcome)
            for row in explain_outcome(outcome, settings) if explained else ():
                write_output(row)
    if json_output:
        write_json([outcome.to_dict() for outcome in results])
    if any(isinstance(outcome.error, InvalidQuery) for outcome in results):
        raise typer.Exit(USAGE)
    if any(outcome.error is not None for outcome in results) or not (has_model or no_answer):
        raise typer.Exit(FAILED)


def query_command(
    config: ConfigFile = None,
    sets: Sets = None,
    kind: Kind = None,
    top_k: TopK = None,
    no_answer: NoAnswer = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Treat the lines of a pipe as one conversation.")
    ] = False,
    no_history: Annotated[
        bool,
        typer.Option("--no-history", help="Do not save questions for the next session's up arrow."),
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Write one JSON object per question.")
    ] = False,
) -> None:
    """Ask the index questions, one after another.

    At a terminal this is a conversation: a question may refer to earlier
    questions. 'tt' changes the transformation type, ':help' lists the other
    commands, 'exit' leaves. For the up arrow, questions are saved in
    qtmiddleware/history in your state folder, in a file that only you can
    read. --no-history turns this off.

    In a pipe every line is a separate question, unless --chat is given. The
    commands work there too: 'tt' with the number or name of a type on the next
    line, the number of a type on the first line, and 'exit'. Answers go to
    stdout, notes to stderr. The exit code is 1 if every question failed.

    Without a language model the command shows passages instead of answers.
    """
    loaded = load_config(config, sets, transformation_type=kind)
    has_model = has_language_model(loaded.settings)
    lock_reason = "" if has_model else f"{NO_MODEL} Until then the transformation type is none."
    with open_middleware(loaded, config) as middleware:
        if not has_model:
            write_note(f"{NO_MODEL} Passages, ranked by the rules, are shown instead of answers.")
        keyboard = (
            open_keyboard(should_save_questions=not no_history) if sys.stdin.isatty() else None
        )
        own_types = tuple(loaded.settings.transforms)
        choose_transformation_type = (
            None
            if keyboard is None
            else partial(choose_transformation_type_or_line, keyboard, own_types=own_types)
        )
        session = Session(
            partial(
                ask_index,
                middleware,
                should_generate_answer=has_model and not no_answer,
                top_k=top_k,
            ),
            loaded,
            loaded.settings.transformation_type if has_model else "none",
            is_chat=has_model and (keyboard is not None or chat),
            choose_transformation_type=choose_transformation_type,
            lock_reason=lock_reason,
            should_stream_answers=sys.stdout.isatty(),
            should_show_questions=keyboard is None,
            should_write_json=json_output,
        )
        if keyboard is not None:
            _run_session(
                session, keyboard, should_ask_transformation_type=kind is None and not lock_reason
            )
            return
        should_ask_transformation_type = kind is None and not json_output
        # Some Windows programs begin their output with a byte order mark.
        for line in (text.removeprefix("\ufeff") for text in sys.stdin):
            # A session at a terminal begins with the choice of a type. A first line that is a
            # number makes the same choice in a pipe.
            if (
                should_ask_transformation_type
                and line.strip().isdecimal()
                and find_transformation_type(line, session.own_types) is not None
            ):
                session.expect_transformation_type_next()
            should_ask_transformation_type = should_ask_transformation_type and not line.strip()
            if not session.process_line(line):
                break
    if session.question_count and session.failure_count == session.question_count:
        raise typer.Exit(FAILED)


@contextmanager
def open_middleware(config: Config, config_file: str | None) -> Iterator[QueryMiddleware]:
    """Yield a middleware that searches the index, and show the middleware's warnings on stderr.

    *config_file* is the file that ``--config`` names, or ``None``. Raises `StoreError` if there is
    no index.
    """
    report_default_files(list_default_files(config), named_config=config_file)
    with show_warnings(hidden_events=SHOWN_ANYWAY), QueryMiddleware(config) as middleware:
        # A missing index raises its error here, before any question is asked.
        middleware.retriever  # noqa: B018
        yield middleware


def parse_filter(filter_json: str | None) -> Mapping[str, Any] | None:
    """Return the metadata filter in the JSON text *filter_json*, or ``None`` without a filter.

    Raises `typer.BadParameter` if *filter_json* is not a JSON object.
    """
    if filter_json is None:
        return None
    try:
        condition = json.loads(filter_json)
    except (ValueError, RecursionError):
        condition = None
    if not isinstance(condition, dict):
        raise typer.BadParameter(
            """the filter must be a JSON object, such as '{"source": "a.txt"}'""",
            param_hint="--filter",
        )
    return condition


def _run_session(
    session: Session, keyboard: Keyboard, *, should_ask_transformation_type: bool
) -> None:
    """Read lines from *keyboard*, and pass them to *session* until the user ends the session.

    Ctrl-C clears the current line or stops the current answer.

    Args:
        session: Answers the lines.
        keyboard: Reads the lines from the terminal.
        should_ask_transformation_type: Whether to ask first for a transformation type.
    """
    line = ""
    # Ctrl-D ends the input, at the question's prompt as well as at the choice of a type.
    with suppress(EOFError):
        if should_ask_transformation_type:
            with suppress(KeyboardInterrupt):
                # The user may type the first question here; `line` then holds that question.
                session.transformation_type, line = choose_transformation_type_or_line(
                    keyboard, session.transformation_type, session.own_types
                )
        write_note(f"\nCurrent transformation type: {session.transformation_type}")
        write_note("Type 'tt' to change transformation type, 'exit' to quit, ':help' for more.\n")
        while True:
            try:
                if not session.process_line(line):
                    return
            except KeyboardInterrupt:
                write_note("Stopped.")
            line = ""
            with suppress(KeyboardInterrupt):
                line = keyboard.read_question()
