"""``qtm preprocess``: what the rules make of a question."""

from __future__ import annotations

from typing import Annotated

import typer

from qtmiddleware.cli.console import AsJson, ConfigFile, Queries, as_json, lines, out
from qtmiddleware.cli.environment import note_files
from qtmiddleware.config import Config
from qtmiddleware.preprocessing import prepare
from qtmiddleware.retrieval.request import validate_query


def preprocess_command(
    query: Queries = None,
    language: Annotated[str | None, typer.Option(help="Code of the word list, or auto.")] = None,
    config: ConfigFile = None,
    json_output: AsJson = False,
) -> None:
    """Turn questions into keywords, without a model."""
    settings = Config.load(config).settings
    note_files({}, config=config)
    options = settings.preprocess
    rows = []
    for text in lines(query):
        made = prepare(
            validate_query(text, "query", settings),
            language=language or options.language,
            keep_words=options.keep_words,
            extra_words=options.extra_words,
        )
        if json_output:
            rows.append({"query": text, "keywords": made.keywords, "language": made.language})
        else:
            out.print(made.keywords)
    if json_output:
        as_json(rows)
