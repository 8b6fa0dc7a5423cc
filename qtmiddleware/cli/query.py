"""``qtm query``: questions and answers, one after the other."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer

from qtmiddleware.cli.asked import Asker
from qtmiddleware.cli.console import ConfigFile
from qtmiddleware.cli.environment import NO_MODEL, files_of, note_files
from qtmiddleware.cli.exits import FAILED
from qtmiddleware.cli.keyboard import Keyboard, keyboard
from qtmiddleware.cli.kinds import NAMES, choose
from qtmiddleware.cli.session import Session
from qtmiddleware.cli.show import heed_warnings, note
from qtmiddleware.config import Config
from qtmiddleware.config.settings import TransformationType
from qtmiddleware.providers.llms import has_language_model
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

Kind = Annotated[str | None, typer.Option("--type", "-t", help=f"Transformation type: {NAMES}.")]
TopK = Annotated[int | None, typer.Option("--top-k", "-k", min=1, help="Passages for a question.")]
NoAnswer = Annotated[bool, typer.Option("--no-answer", help="Show the passages; ask for no answer.")]


def query_command(
    config: ConfigFile = None,
    kind: Kind = None,
    top_k: TopK = None,
    no_answer: NoAnswer = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Take the lines of a pipe for one conversation, as is done at a terminal.")
    ] = False,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not keep the questions for the up arrow of the next session.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Write one JSON object a question.")] = False,
) -> None:
    """Ask questions of the index, one after the other.

    At a terminal this is a conversation: a question may refer to the ones
    before it. 'tt' changes the transformation type, ':help' lists the other
    commands, 'exit' leaves. Questions are kept for the up arrow in
    qtmiddleware/history in the user's state folder, readable by the user
    alone, unless --no-history is given.

    In a pipe every line is a question of its own, unless --chat is given;
    'exit' ends the input, ':type NAME' and ':explain' work too. Answers go to
    stdout, notes to stderr. The exit code is 1 when every question failed.

    Without a language model passages are shown instead of answers.
    """
    loaded = Config.load(config)
    if kind is not None:
        loaded = loaded.overridden({"transformationType": kind}, origin="--type")
    has_model = has_language_model(loaded.settings)
    wanted: TransformationType = loaded.settings.transformation_type if has_model else "none"
    fixed = "" if has_model else f"{NO_MODEL} Until then the transformation type is none."
    at_terminal = sys.stdin.isatty()
    note_files(files_of(loaded), config=config)
    with QueryMiddleware(loaded) as middleware:
        # Where there is no index, that is said before anything is asked.
        heed_warnings()
        middleware.retriever  # noqa: B018
        if not has_model:
            note(f"{NO_MODEL} Passages are shown instead of answers, found by the rules alone.")
        keys = keyboard(keep=not no_history) if at_terminal else None
        session = Session(
            Asker(middleware=middleware, answers=has_model and not no_answer, top_k=top_k),
            loaded,
            wanted,
            chat=has_model and (keys is not None or chat),
            choose=partial(choose, keys.choice, note) if keys is not None else None,
            fixed=fixed,
            streams=sys.stdout.isatty(),
            as_json=json_output,
        )
        if keys is not None:
            _converse(session, keys, asks_kind=kind is None and not fixed)
            return
        for line in sys.stdin:
            if not session.take(line.removeprefix("\ufeff")):
                break
    if session.asked and session.failed == session.asked:
        raise typer.Exit(FAILED)


def _converse(session: Session, keys: Keyboard, *, asks_kind: bool) -> None:
    """Take what is typed until somebody leaves."""
    with suppress(EOFError):
        if asks_kind:
            with suppress(KeyboardInterrupt):
                session.kind = choose(keys.choice, note, session.kind)
        note(f"\nCurrent transformation type: {session.kind}")
        note("Type 'tt' to change transformation type, 'exit' to quit, ':help' for more.\n")
        while _go_on(session, keys):
            pass


def _go_on(session: Session, keys: Keyboard) -> bool:
    """Take one line; Ctrl-C clears it, or stops what it asked for."""
    try:
        line = keys.question()
    except KeyboardInterrupt:
        return True
    try:
        return session.take(line)
    except KeyboardInterrupt:
        note("Stopped.")
        return True
