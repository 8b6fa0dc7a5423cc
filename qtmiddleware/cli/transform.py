"""``qtm transform``: what the language model makes of a question."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.cli.console import AsJson, ConfigFile, Queries, as_json, lines, notes, out
from qtmiddleware.cli.environment import note_files
from qtmiddleware.cli.kinds import NAMES
from qtmiddleware.config import Config
from qtmiddleware.errors import ModelError
from qtmiddleware.types import Transformation
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_NO_KEY = "unauthorized"
_Kind = Annotated[
    str | None,
    typer.Option("--type", "-t", help=f"One of {NAMES}."),
]
_History = Annotated[
    list[str] | None,
    typer.Option("--history", "-H", help="Earlier turns, user and assistant by turns, oldest first."),
]


def transform_command(
    query: Queries = None,
    kind: _Kind = None,
    config: ConfigFile = None,
    history: _History = None,
    json_output: AsJson = False,
) -> None:
    """Show the variants the language model makes of questions."""
    loaded = Config.load(config)
    chosen = kind or (
        loaded.settings.transformation_type if loaded.settings.transformation_type != "none" else "combined"
    )
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(history or [])]
    rows: list[dict[str, Any]] = []
    note_files({}, config=config)
    with QueryMiddleware(loaded.overridden({"transformationType": chosen})) as middleware:
        for text in lines(query):
            made = middleware.transform(text, history=turns)
            rows.append({"query": text, **asdict(made)})
            if not json_output:
                _show(made)
    if json_output:
        as_json(rows)
    if rows and all(_is_empty(row) for row in rows):
        reasons = sorted({reason for row in rows for _, reason in row["notes"]})
        advice = "; set OPENAI_API_KEY, or QTM_LLM_BASE_URL for a service of your own" if _NO_KEY in reasons else ""
        raise ModelError("unavailable", f"the language model gave nothing usable ({', '.join(reasons)}){advice}")


def _is_empty(row: dict[str, Any]) -> bool:
    return not any(row[name] for name in TEXT_FIELDS)


def _show(made: Transformation) -> None:
    for name, row in TEXT_FIELDS.items():
        for text in made.texts(name):
            out.print(f"{row.label}: {text}")
    for stage, what in made.notes:
        notes.print(f"{stage}: {what}")
