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
    'tt' with the number or name of a type on the next line, the number of a type
    on the first line, and 'exit'.

    Answers go to stdout, notes to stderr. --json writes one object per line for
    each question. Without a language model the command shows passages instead of
    answers. The exit code is 1 if a question of the command line or every question
    of a pipe failed, and 2 if a question of the command line is not valid.
    """
    from qtmiddleware.kit.cli.searching import open_search
    from qtmiddleware.kit.cli.session import Session, run_pipe, run_terminal
    from qtmiddleware.providers.llms import has_language_model

    options: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    if condition is not None:
        options["filter"] = _parse_filter(condition)
    types = () if kind is None else (f"transformationType={json.dumps(kind)}",)
    with open_search(None, config, [*(sets or ()), *types]) as search:
        settings = search.config.settings
        has_model = has_language_model(settings)
        if not has_model:
            write_note(f"{NO_MODEL} Only passages are shown, ranked by the rules.")
        is_typed = not questions and sys.stdin.isatty()
        session = Session(
            search.wrapped.middleware,
            search.config,
            # Otherwise, every result would report the missing model as a degradation.
            settings.transformation_type if has_model else "none",
            lock_reason="" if has_model else f"{NO_MODEL} Until then the type is none.",
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
            run_terminal(session, asks_type=kind is None)
        else:
            run_pipe(session, asks_type=kind is None and not json_output)
    errors = [error for error in session.errors if error is not None]
    if questions and any(isinstance(error, InvalidQuery) for error in errors):
        raise typer.Exit(USAGE)
    is_failure = errors or not (has_model or no_answer)
    if is_failure if questions else errors and len(errors) == len(session.errors):
        raise typer.Exit(FAILED)


def _parse_filter(text: str) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        condition = json.loads(text)
        if isinstance(condition, dict):
            return condition
    raise ConfigError(
        """the filter must be a JSON object, such as '{"source": "a.txt"}'""", path="--filter"
    )
