"""``qtm preprocess`` and ``qtm transform``: what the rules and the language model make of questions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.cli.console import (
    AsJson,
    ConfigFile,
    History,
    Kind,
    Queries,
    as_json,
    lines,
    notes,
    out,
    to_messages,
)
from qtmiddleware.cli.environment import note_files
from qtmiddleware.config import Config
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import prepare
from qtmiddleware.retrieval.request import validate_query
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_NO_KEY = "unauthorized"


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


def transform_command(
    query: Queries = None,
    kind: Kind = None,
    config: ConfigFile = None,
    history: History = None,
    json_output: AsJson = False,
) -> None:
    """Show the variants the language model makes of questions."""
    loaded = Config.load(config)
    configured = loaded.settings.transformation_type
    chosen = kind or (configured if configured != "none" else "combined")
    rows: list[dict[str, Any]] = []
    note_files({}, config=config)
    with QueryMiddleware(loaded.overridden({"transformationType": chosen})) as middleware:
        for text in lines(query):
            transformation = middleware.transform(text, history=to_messages(history))
            rows.append({"query": text, **asdict(transformation)})
            if json_output:
                continue
            for name, row in TEXT_FIELDS.items():
                for variant in transformation.texts(name):
                    out.print(f"{row.label}: {variant}")
            for stage, what in transformation.notes:
                notes.print(f"{stage}: {what}")
    if json_output:
        as_json(rows)
    if rows and not any(row[name] for row in rows for name in TEXT_FIELDS):
        reasons = sorted({reason for row in rows for _, reason in row["notes"]})
        advice = "; set OPENAI_API_KEY, or QTM_LLM_BASE_URL for a service of your own" if _NO_KEY in reasons else ""
        raise ModelError("unavailable", f"the language model gave nothing usable ({', '.join(reasons)}){advice}")
