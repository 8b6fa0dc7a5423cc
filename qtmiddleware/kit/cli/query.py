"""``qtm query``: ask the index questions from arguments, a pipe or a session at the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer import Option

from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.kit.cli import FAILED, USAGE
from qtmiddleware.kit.cli.environment import NO_MODEL
from qtmiddleware.kit.cli.options import AsJson, ConfigFile, Kind, Questions, Sets
from qtmiddleware.kit.cli.output import write_note


def command(
    questions: Questions = None,
    config: ConfigFile = None,
    sets: Sets = None,
    kind: Kind = None,
    top_k: Annotated[
        int | None, Option("--top-k", "-k", min=1, help="Passages per question.")
    ] = None,
    condition: Annotated[
        str | None,
        Option(
            "--filter",
            help="""Filter on metadata, as JSON: '{"source": "a.txt", "page": {"$gte": 3}}'.""",
        ),
    ] = None,
    no_answer: Annotated[
        bool, Option("--no-answer", help="Show only the passages, without an answer.")
    ] = False,
    json_output: AsJson = False,
) -> None:
    """Ask the index questions.

    Without a question, a terminal starts a session: a question may refer to
    earlier questions. 'tt' changes the transformation type, 'exit' leaves.

    In a pipe every line is a separate question. Both words work there too:
    'tt' with the number or name of a type on the next line, and 'exit'. The first
    line may be the number or name of a type, too.

    Answers go to stdout, notes to stderr. --json writes one object per line for
    each question. Without a language model the command shows passages instead of
    answers. The exit code is 1 if every question failed, and 2 if none is valid.
    """
    from qtmiddleware.kit.cli.searching import open_search
    from qtmiddleware.kit.cli.session import Session, run_pipe, run_terminal

    options: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    if condition is not None:
        options["filter"] = _parse_filter(condition)
    types = () if kind is None else (f"transformationType={json.dumps(kind)}",)
    with open_search(None, config, [*(sets or ()), *types]) as search:
        middleware = search.wrapped.middleware
        has_model = middleware.engine.has_model
        if not has_model:
            write_note(f"{NO_MODEL} Only passages are shown, ranked by the rules.")
        is_typed = not questions and sys.stdin.isatty() and sys.stdout.isatty()
        session = Session(
            middleware,
            generates=has_model and not no_answer,
            is_typed=is_typed,
            names_questions=not is_typed and len(questions or ()) != 1,
            as_json=json_output,
            options=options,
        )
        if questions:
            for text in questions:
                session.ask(text)
        elif is_typed:
            run_terminal(session, asks_type=kind is None and has_model)
        else:
            run_pipe(session, asks_type=kind is None and not json_output)
    if session.errors and len(session.errors) == session.asked:
        is_usage = all(isinstance(error, InvalidQuery) for error in session.errors)
        raise typer.Exit(USAGE if is_usage else FAILED)


def _parse_filter(text: str) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        condition = json.loads(text)
        if isinstance(condition, dict):
            return condition
    raise ConfigError(
        """the filter must be a JSON object, such as '{"source": "a.txt"}'""", path="--filter"
    )
