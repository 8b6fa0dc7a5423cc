"""``qtm config``: what is set, where it came from, and what can be set."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qtmiddleware.cli.console import AsJson, as_json, notes, out
from qtmiddleware.config import Config, json_schema

app = typer.Typer(help="Show, check and describe the configuration.", no_args_is_help=True)

_File = Annotated[str | None, typer.Argument(help="Config file; without one, QTM_CONFIG or the defaults.")]


@app.command()
def show(file: _File = None, json_output: AsJson = False) -> None:
    """Show every value and the layer it came from."""
    config = Config.load(file)
    if json_output:
        as_json([{"key": key, "value": value, "origin": origin} for key, value, origin in config.rows()])
        return
    rows = [(key, json.dumps(value, ensure_ascii=False), origin) for key, value, origin in config.rows()]
    wide = max(len(key) for key, _, _ in rows)
    for key, value, origin in rows:
        out.print(f"{key:<{wide}}  {value}  ({origin})")


@app.command()
def check(file: _File = None, json_output: AsJson = False) -> None:
    """Check a config file; exit code 2 says that something in it is wrong."""
    Config.load(file)
    if json_output:
        as_json({"ok": True})
    else:
        notes.print("the configuration is valid")


@app.command()
def schema() -> None:
    """Write the JSON schema of config files."""
    as_json(json_schema())
