"""``qtm config``: what is set, where it came from, and what can be set."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from qtmiddleware.cli.console import AsJson, Sets, as_json, notes, out
from qtmiddleware.cli.environment import load_config, note_files
from qtmiddleware.config import json_schema
from qtmiddleware.config.settings import Settings
from qtmiddleware.providers.llms.openai.clients import Clients
from qtmiddleware.providers.llms.openai.prices import find_shutdown
from qtmiddleware.providers.llms.openai.requests import is_openai

app = typer.Typer(help="Show, check and describe the configuration.", no_args_is_help=True)

_File = Annotated[str | None, typer.Argument(help="Config file; without one, that of the other commands.")]


@app.command()
def show(file: _File = None, sets: Sets = None, json_output: AsJson = False) -> None:
    """Show every value and the layer it came from."""
    config = load_config(file, sets)
    note_files({}, config=file)
    for warning in _find_warnings(config.settings):
        notes.print(f"warning: {warning}")
    if json_output:
        as_json([{"key": key, "value": value, "origin": origin} for key, value, origin in config.rows()])
        return
    rows = [(key, json.dumps(value, ensure_ascii=False), origin) for key, value, origin in config.rows()]
    wide = max(len(key) for key, _, _ in rows)
    for key, value, origin in rows:
        out.print(f"{key:<{wide}}  {value}  ({origin})")


@app.command()
def check(file: _File = None, sets: Sets = None, json_output: AsJson = False) -> None:
    """Check a config file; exit code 2 says that something in it is wrong.

    Models with a known end, and a query log whose folder is missing, are warned of.
    """
    warnings = _find_warnings(load_config(file, sets).settings)
    note_files({}, config=file)
    if json_output:
        as_json({"ok": True, "warnings": warnings})
        return
    notes.print("the configuration is valid")
    for warning in warnings:
        notes.print(f"warning: {warning}")


@app.command()
def schema() -> None:
    """Write the JSON schema of config files."""
    as_json(json_schema())


def _find_warnings(settings: Settings) -> list[str]:
    return [*find_shutdown_warnings(settings, datetime.now(UTC).date()), *find_log_warnings(settings)]


def find_log_warnings(settings: Settings) -> list[str]:
    """A sentence where the folder of the query log is missing, which is not made by itself."""
    folder = Path(settings.log.path or "").parent
    if settings.log.path is None or folder.is_dir():
        return []
    return [f"log.path lies in {folder}, which is no folder here; make it, or no query will be logged"]


def find_shutdown_warnings(settings: Settings, today: date) -> list[str]:
    """A sentence for each model of *settings* that OpenAI has shut down or will; other addresses keep their own."""
    if not is_openai(Clients(None, settings.llm.base_url).host):
        return []
    warnings = []
    for key, model in (("transformationModel", settings.transformation_model), ("chatModel", settings.chat_model)):
        shutdown = find_shutdown(model)
        if shutdown is not None:
            verb = "was" if shutdown.day <= today else "is"
            successor = shutdown.successor or "named at developers.openai.com/api/docs/deprecations"
            warnings.append(f"{key} {model} {verb} shut down on {shutdown.day}; its successor is {successor}")
    return warnings
