"""``qtm config``: show presets, the schema, and the settings in use with their origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from qtmiddleware.config.reading import (
    PRESET_ENDING,
    PRESETS,
    find_presets_folder,
    read_config_file,
    read_preset,
)
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.console import (
    AsJson,
    ConfigFile,
    Sets,
    notes,
    out,
    write_json,
)
from qtmiddleware.kit.cli.environment import load_config, report_default_files
from qtmiddleware.kit.cli.reports import name_option_in_errors
from qtmiddleware.kit.cli.terminal import escape_line, write_note
from qtmiddleware.kit.files import replace_file

app = typer.Typer(help="Create, show and check a config.", no_args_is_help=True)

_DEFAULT_FILE: Final = f"query-transform{PRESET_ENDING}"
_SCHEMA: Final = "qtmiddleware.schema.json"
"""The name of the JSON schema that ``qtm config init`` writes beside a config."""

_File = Annotated[
    str | None,
    typer.Argument(
        help="Config file or preset. Default: the config that the other commands use.",
    ),
]


@app.command()
def presets(json_output: AsJson = False) -> None:
    """List the presets.

    You can use the name of a preset wherever a config file is expected.
    """
    rows = {name: read_preset(name)[1]["$comment"] for name in PRESETS}
    if json_output:
        write_json(
            [{"name": name, "description": description} for name, description in rows.items()]
        )
        return
    width = max(map(len, rows))
    for name, description in rows.items():
        out.print(f"{name:<{width}}  {description}")


@app.command()
def init(
    path: Annotated[
        Path, typer.Argument(help="File to write, or an existing folder.", show_default=True)
    ] = Path(_DEFAULT_FILE),
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "-p",
            help="Preset to copy. Default: a config for your own documents.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json_output: AsJson = False,
) -> None:
    """Write a config file to start from.

    A JSON schema is written beside the file, so that editors can complete and check keys.
    """
    # In `qtm config init rules`, the user probably means the preset and not a file.
    if str(path) in PRESETS:
        message = (
            f"{path} is the name of a preset; write --preset {path}, and name a file that ends in"
            " .json"
        )
        raise ConfigError(message, path="PATH", value=str(path))
    if preset is None:
        file_name = _DEFAULT_FILE
        values = read_config_file(find_presets_folder() / file_name)[1]
    else:
        origin, values = read_preset(preset)
        preset = origin.removeprefix("preset ")
        file_name = preset + PRESET_ENDING
    target = path / file_name if path.is_dir() else path
    schema_file = target.with_name(_SCHEMA)
    if target.suffix.lower() != ".json":
        raise ConfigError(
            f"the file must end in .json, not {target}", path="PATH", value=str(target)
        )
    if target.exists() and not force:
        message = f"{target} already exists; name another file, or overwrite it with --force"
        raise ConfigError(message, path="PATH", value=str(target))
    config_text = json.dumps({**values, "$schema": f"./{_SCHEMA}"}, indent=2, ensure_ascii=False)
    with name_option_in_errors(target, "PATH"):
        target.parent.mkdir(parents=True, exist_ok=True)
        # The schema comes first, so that an editor that opens the config finds it.
        if force or not schema_file.exists():
            replace_file(schema_file, _find_schema().read_bytes())
        replace_file(target, f"{config_text}\n".encode())
    if json_output:
        write_json({"preset": preset, "config": str(target), "schema": str(schema_file)})
        return
    out.print(str(target))
    message = f"{schema_file.name} beside it is for editors. Use the file as --config {target}."
    write_note(escape_line(message))


@app.command()
def show(
    file: _File = None, config: ConfigFile = None, sets: Sets = None, json_output: AsJson = False
) -> None:
    """Show every value and the layer it came from."""
    name = file or config
    loaded = load_config(name, sets)
    report_default_files({}, named_config=name)
    for warning in _list_warnings(loaded.settings):
        notes.print(f"warning: {warning}")
    if json_output:
        write_json(
            [{"key": key, "value": value, "origin": origin} for key, value, origin in loaded.rows()]
        )
        return
    rows = [
        (key, json.dumps(value, ensure_ascii=False), origin) for key, value, origin in loaded.rows()
    ]
    width = max(len(key) for key, _, _ in rows)
    for key, value, origin in rows:
        out.print(f"{key:<{width}}  {value}  ({origin})")


@app.command()
def check(
    file: _File = None, config: ConfigFile = None, sets: Sets = None, json_output: AsJson = False
) -> None:
    """Check a config file.

    The exit code is 2 if the config is not valid. The command also warns if the
    query log's folder is missing.
    """
    name = file or config
    warnings = _list_warnings(load_config(name, sets).settings)
    report_default_files({}, named_config=name)
    if json_output:
        write_json({"ok": True, "warnings": warnings})
        return
    notes.print("the config is valid")
    for warning in warnings:
        notes.print(f"warning: {warning}")


@app.command()
def schema() -> None:
    """Write the JSON schema of config files."""
    write_json(json.loads(_find_schema().read_bytes()))


def _find_schema() -> Path:
    return find_presets_folder() / "schema.json"


def _list_warnings(settings: Settings) -> list[str]:
    # Without the folder, queries are not logged, because the query log does not create the folder.
    folder = Path(settings.log.path or "").parent
    if settings.log.path is None or folder.is_dir():
        return []
    missing = f"log.path lies in {folder}, which does not exist"
    return [f"{missing}; create the folder, or no query will be logged"]
