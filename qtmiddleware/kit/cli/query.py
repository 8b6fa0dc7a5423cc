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
from qtmiddleware.kit.cli.asking import Outcome, ask
from qtmiddleware.kit.cli.console import (
    AsJson,
    ConfigFile,
    History,
    Kind,
    Queries,
    Sets,
    as_json,
    format_question_heading,
    read_questions,
    show_warnings,
    to_messages,
)
from qtmiddleware.kit.cli.environment import NO_MODEL, list_default_files, load_config, note_files
from qtmiddleware.kit.cli.session import Keyboard, Session, choose_kind, find_kind, open_keyboard
from qtmiddleware.kit.cli.show import explain_outcome, show_outcome, show_pieces
from qtmiddleware.kit.cli.terminal import FAILED, USAGE, note, say
from qtmiddleware.providers.llms import has_language_model
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

# Warnings that need no note, because the result of each question shows them.
SHOWN_ANYWAY = ("retrieval degraded", "answer degraded", "nothing was improved")

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
    loaded = load_config(config, sets, kind=kind)
    metadata_filter = parse_filter(condition)
    has_model = has_language_model(loaded.settings)
    if not has_model:
        loaded = loaded.overridden({"transformationType": "none"}, origin="no language model")
    settings = loaded.settings
    results: list[Outcome] = []
    with open_middleware(loaded, config) as middleware:
        if not has_model:
            note(f"{NO_MODEL} Only passages are shown, ranked by the rules.")
        streams = sys.stdout.isatty() and not json_output
        for text in read_questions(question):
            if not json_output and results:
                say()
            if not json_output and (question is None or len(question) > 1):
                say(format_question_heading(text))
            with show_pieces() as write:
                outcome = ask(
                    middleware,
                    text,
                    kind=settings.transformation_type,
                    answers=has_model and not no_answer,
                    history=to_messages(history),
                    write=write if streams else None,
                    top_k=top_k,
                    filter=metadata_filter,
                )
            results.append(outcome)
            if json_output:
                continue
            show_outcome(outcome)
            for row in explain_outcome(outcome, settings) if explained else ():
                say(row)
    if json_output:
        as_json([outcome.to_dict() for outcome in results])
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
    loaded = load_config(config, sets, kind=kind)
    has_model = has_language_model(loaded.settings)
    fixed = "" if has_model else f"{NO_MODEL} Until then the transformation type is none."
    with open_middleware(loaded, config) as middleware:
        if not has_model:
            note(f"{NO_MODEL} Passages, ranked by the rules, are shown instead of answers.")
        keyboard = open_keyboard(saves_questions=not no_history) if sys.stdin.isatty() else None
        own_kinds = tuple(loaded.settings.transforms)
        choose = None if keyboard is None else partial(choose_kind, keyboard, own_kinds=own_kinds)
        session = Session(
            partial(ask, middleware, answers=has_model and not no_answer, top_k=top_k),
            loaded,
            loaded.settings.transformation_type if has_model else "none",
            chat=has_model and (keyboard is not None or chat),
            choose=choose,
            fixed=fixed,
            streams=sys.stdout.isatty(),
            names=keyboard is None,
            as_json=json_output,
        )
        if keyboard is not None:
            _run_session(session, keyboard, asks_kind=kind is None and not fixed)
            return
        asks_kind = kind is None and not json_output
        for line in (text.removeprefix("\ufeff") for text in sys.stdin):
            # A session at a terminal begins with the choice of a type. A first line that is a
            # number makes the same choice in a pipe.
            if (
                asks_kind
                and line.strip().isdecimal()
                and find_kind(line, session.own_kinds) is not None
            ):
                session.await_kind()
            asks_kind = asks_kind and not line.strip()
            if not session.process_line(line):
                break
    if session.asked and session.failed == session.asked:
        raise typer.Exit(FAILED)


@contextmanager
def open_middleware(loaded: Config, config: str | None) -> Iterator[QueryMiddleware]:
    """Yield the middleware of the index, and show its warnings on stderr.

    Raises `StoreError` if there is no index.
    """
    note_files(list_default_files(loaded), config=config)
    with show_warnings(without=SHOWN_ANYWAY), QueryMiddleware(loaded) as middleware:
        # A missing index raises its error here, before any question is asked.
        middleware.retriever  # noqa: B018
        yield middleware


def parse_filter(text: str | None) -> Mapping[str, Any] | None:
    """Parse *text*, the JSON of ``--filter``, and return the metadata filter.

    Returns ``None`` if *text* is ``None``. Raises `typer.BadParameter` if *text* is not a JSON
    object.
    """
    if text is None:
        return None
    try:
        condition = json.loads(text)
    except (ValueError, RecursionError):
        condition = None
    if not isinstance(condition, dict):
        raise typer.BadParameter(
            """the filter must be a JSON object, such as '{"source": "a.txt"}'""",
            param_hint="--filter",
        )
    return condition


def _run_session(session: Session, keyboard: Keyboard, *, asks_kind: bool) -> None:
    """Read lines from *keyboard* and pass them to *session*, until the user leaves.

    Ctrl-C clears the current line, or stops the answer.
    """
    line = ""
    with suppress(EOFError):
        if asks_kind:
            with suppress(KeyboardInterrupt):
                session.kind, line = choose_kind(keyboard, session.kind, session.own_kinds)
        note(f"\nCurrent transformation type: {session.kind}")
        note("Type 'tt' to change transformation type, 'exit' to quit, ':help' for more.\n")
        while True:
            try:
                if not session.process_line(line):
                    return
            except KeyboardInterrupt:
                note("Stopped.")
            line = ""
            with suppress(KeyboardInterrupt):
                line = keyboard.read_question()
