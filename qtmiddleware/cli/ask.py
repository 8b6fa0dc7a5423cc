"""``qtm ask``: questions given with the command, answered one by one."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qtmiddleware.cli.asked import Asked, Asker
from qtmiddleware.cli.console import AsJson, ConfigFile, Queries, as_json, lines
from qtmiddleware.cli.environment import NO_MODEL, files_of, note_files
from qtmiddleware.cli.exits import FAILED, USAGE
from qtmiddleware.cli.explain import explained
from qtmiddleware.cli.query import Kind, NoAnswer, TopK
from qtmiddleware.cli.records import record
from qtmiddleware.cli.show import Pieces, heed_warnings, note, present, say
from qtmiddleware.config import Config
from qtmiddleware.errors import InvalidQuery
from qtmiddleware.providers.llms import has_language_model
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_History = Annotated[
    list[str] | None,
    typer.Option("--history", "-H", help="Earlier turns, user and assistant by turns, oldest first."),
]
_Filter = Annotated[
    str | None,
    typer.Option("--filter", help="""Condition on metadata as JSON: '{"source": "a.txt", "page": {"$gte": 3}}'."""),
]


def ask_command(
    question: Queries = None,
    config: ConfigFile = None,
    kind: Kind = None,
    top_k: TopK = None,
    history: _History = None,
    condition: _Filter = None,
    no_answer: NoAnswer = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show how the passages were found.")] = False,
    json_output: AsJson = False,
) -> None:
    """Answer questions from the index.

    Without a language model, or where it fails, the passages are shown and the
    exit code is 1. It is 0 where the passages do not hold the answer, and 2
    where a question cannot be asked as it is.
    """
    loaded = Config.load(config)
    if kind is not None:
        loaded = loaded.overridden({"transformationType": kind}, origin="--type")
    wanted = _condition(condition)
    turns = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(history or [])]
    has_model = has_language_model(loaded.settings)
    if not has_model:
        loaded = loaded.overridden({"transformationType": "none"}, origin="no language model")
    settings = loaded.settings
    rows: list[dict[str, Any]] = []
    came: list[Asked] = []
    note_files(files_of(loaded), config=config)
    with QueryMiddleware(loaded) as middleware:
        # Where there is no index, that is said before anything is read.
        heed_warnings()
        middleware.retriever  # noqa: B018
        if not has_model:
            note(f"{NO_MODEL} Passages are shown, found by the rules alone.")
        asker = Asker(middleware=middleware, answers=has_model and not no_answer, top_k=top_k, filter=wanted)
        streams = sys.stdout.isatty() and not json_output
        for text in lines(question):
            with Pieces() as pieces:
                asked = asker.ask(
                    text, kind=settings.transformation_type, history=turns, write=pieces.write if streams else None
                )
            came.append(asked)
            if json_output:
                rows.append(record(asked))
                continue
            if len(came) > 1:
                say()
            present(asked)
            for row in explained(asked, settings) if explain else ():
                say(row)
    if json_output:
        as_json(rows)
    if any(isinstance(asked.error, InvalidQuery) for asked in came):
        raise typer.Exit(USAGE)
    if any(asked.error is not None for asked in came) or not (has_model or no_answer):
        raise typer.Exit(FAILED)


def _condition(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise typer.BadParameter("""it must be a JSON object such as '{"source": "a.txt"}'""", param_hint="--filter")
    return read
