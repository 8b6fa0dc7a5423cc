"""``qtm config``: create a config file, and show the settings in use with their origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer
from typer import Argument, Option

from qtmiddleware.config.reading import (
    PRESET_ENDING,
    PRESETS,
    find_presets_folder,
    read_config_file,
    read_preset,
)
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.environment import load_config
from qtmiddleware.kit.cli.options import AsJson, Sets
from qtmiddleware.kit.cli.output import name_option_in_errors, out, write_json, write_note
from qtmiddleware.kit.files import replace_file

app = typer.Typer(
    help="Create, check and show a config.", no_args_is_help=True, rich_markup_mode=None
)

_DEFAULT_FILE: Final = f"query-transform{PRESET_ENDING}"
_SCHEMA: Final = "qtmiddleware.schema.json"
"""The name of the JSON schema that ``qtm config init`` writes beside a config."""


@app.command()
def init(
    path: Annotated[
        Path, Argument(help="File to write, or an existing folder.", show_default=True)
    ] = Path(_DEFAULT_FILE),
    preset: Annotated[
        str | None,
        Option(
            "--preset",
            "-p",
            help=f"Preset to copy: {', '.join(PRESETS)}. Default: a config for your own documents.",
        ),
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a config file to start from.

    A JSON schema is written beside the file, so that editors can complete and
    check keys.
    """
    folder, name = find_presets_folder(), _DEFAULT_FILE
    if preset is None:
        values = read_config_file(folder / name)[1]
    else:
        origin, values = read_preset(preset)
        name = origin.removeprefix("preset ") + PRESET_ENDING
    target = path / name if path.is_dir() else path
    if target.suffix.lower() != ".json":
        raise ConfigError(f"the file must end in .json, not {target}", path="PATH")
    if target.exists() and not force:
        raise ConfigError(
            f"{target} already exists; name another file, or overwrite it with --force", path="PATH"
        )
    schema = target.with_name(_SCHEMA)
    text = json.dumps({**values, "$schema": f"./{_SCHEMA}"}, indent=2, ensure_ascii=False)
    with name_option_in_errors(target, "PATH"):
        target.parent.mkdir(parents=True, exist_ok=True)
        # The schema comes first, so that an editor that opens the config finds it.
        if force or not schema.exists():
            replace_file(schema, (folder / "schema.json").read_bytes())
        replace_file(target, f"{text}\n".encode())
    out.write(str(target))
    write_note(f"{_SCHEMA} beside it is for editors. Use the file as --config {target}.")


@app.command()
def show(
    file: Annotated[
        str | None,
        Argument(help="Config file or preset. Default: the config that the other commands use."),
    ] = None,
    sets: Sets = None,
    json_output: AsJson = False,
) -> None:
    """Check a config, and show every value and the layer it came from.

    The exit code is 2 if the config is not valid.
    """
    config = load_config(file, sets)
    rows = list(config.rows())
    if json_output:
        write_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return
    width = max(len(key) for key, _, _ in rows)
    for key, value, origin in rows:
        out.write(f"{key:<{width}}  {json.dumps(value, ensure_ascii=False)}  ({origin})")
    write_note("the config is valid")
