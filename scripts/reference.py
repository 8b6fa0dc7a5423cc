"""Write what is derived: `python -m scripts.reference`.

That is the JSON schema of config files, the tables of presets and keys in docs/configuration.md,
and docs/command-line.md.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import MISSING
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.checking import build_adapter
from qtmiddleware.config.introspection import (
    Key,
    convert_to_json,
    describe_allowed_values,
    list_all_keys,
    list_names,
    unwrap,
)
from qtmiddleware.config.reading import PRESETS, read_preset
from qtmiddleware.config.settings import OwnTransform, Settings, SettingsGroup, to_camel_case

ROOT: Final = Path(__file__).parents[1]
SCHEMA: Final = ROOT / "config" / "schema.json"
PAGE: Final = ROOT / "docs" / "configuration.md"
_PRESETS_HEAD: Final = "| Preset | What it does |\n|---|---|\n"
_KEYS_HEAD: Final = "## All keys\n\n"
_TOP_LEVEL: Final = {
    "$schema": "Where this schema is, for editors.",
    "$comment": "What the file is for, for people.",
}


def build_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a config file, for editors and validators."""
    schema = build_adapter().json_schema(by_alias=True)
    definitions = {name: schema["$defs"][name] for name in sorted(schema["$defs"])}
    _complete(Settings, schema, definitions)
    _complete(OwnTransform, definitions["OwnTransform"], definitions)
    texts = {name: {"type": "string", "description": text} for name, text in _TOP_LEVEL.items()}
    schema |= {"properties": texts | schema["properties"], "$defs": definitions}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "qtmiddleware config", **schema}


def _complete(
    group: type[SettingsGroup], schema: dict[str, Any], definitions: dict[str, Any]
) -> None:
    """Add to *schema* what pydantic does not know: descriptions, shorthands, names in camelCase."""
    del schema["title"]
    for field in dataclasses.fields(group):  # type: ignore[arg-type]
        hint, key = field.type, to_camel_case(field.name)
        type_, notes, _ = unwrap(hint)
        entry = schema["properties"][key]
        if type_.__name__ in definitions and type_ is not OwnTransform:
            place = f"#/$defs/{type_.__name__}"
            shorthand = to_camel_case(list_names(hint)[0])
            ways = [{"$ref": place}, {"$ref": f"{place}/properties/{shorthand}"}]
            entry = {"description": type_.__doc__, "anyOf": ways}
            _complete(type_, definitions[type_.__name__], definitions)
        else:
            del entry["title"]
            entry["description"] = next(note for note in notes if isinstance(note, str))
            if names := list_names(hint):
                spellings = [(name, to_camel_case(name)) for name in names]
                entry["propertyNames"] = {"enum": [*dict.fromkeys(chain(*spellings))]}
            if field.default_factory is not MISSING:
                entry["default"] = convert_to_json(field.default_factory(), hint)
        schema["properties"][key] = entry


def build_page(page: str) -> str:
    """Return *page*, docs/configuration.md, with its tables of presets and keys written anew."""
    before, _, _ = page.partition(_KEYS_HEAD)
    presets = "".join(f"| `{name}` | {read_preset(name)[1]['$comment']} |\n" for name in PRESETS)
    head = re.escape(_PRESETS_HEAD)
    before = re.sub(rf"({head})(?:\|.*\n)+", lambda found: found[1] + presets, before)
    tables = [
        _build_table(group, list(keys)) for group, keys in groupby(list_all_keys(), _read_group)
    ]
    return before + _KEYS_HEAD + "\n".join(tables)


def _read_group(key: Key) -> str:
    return key.name.rpartition(".")[0]


def _build_table(group: str, keys: list[Key]) -> str:
    rows = [("Key", "Default", "Allowed", "Meaning", "Environment"), ("---",) * 5]
    for key in keys:
        default = json.dumps(convert_to_json(key.read_value(Settings()), key.hint))
        meaning = next(note for note in unwrap(key.hint)[1] if isinstance(note, str))
        allowed = describe_allowed_values(key.hint)
        variable = f"`{key.environment_variable}`"
        rows.append((f"`{key.name}`", f"`{default}`", allowed, meaning, variable))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"### {group or 'Top level'}", "", *lines, ""])


def write_command_page(path: Path) -> None:
    """Write every command with its options into *path*, out of the command line itself."""
    command = "typer qtmiddleware.kit.cli.app utils docs --name qtm --title"
    options = ["The command line", "--output", str(path)]
    subprocess.run([sys.executable, "-m", *command.split(), *options], cwd=ROOT, check=True)


if __name__ == "__main__":
    text = json.dumps(build_schema(), indent=2, ensure_ascii=False)
    SCHEMA.write_text(f"{text}\n", encoding="utf-8")
    PAGE.write_text(build_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    write_command_page(ROOT / "docs" / "command-line.md")
