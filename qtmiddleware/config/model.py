"""What may be written: the settings as pydantic models, which check a layer and make the JSON schema."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from qtmiddleware.config.errors import fold, holds_key, strayed, unknown, wrong
from qtmiddleware.config.keys import (
    PROMPT_NAMES,
    SHORTHANDS,
    Key,
    all_keys,
    camel,
    default_of,
    dotted,
    keys_by_path,
    members,
    spellings,
)
from qtmiddleware.config.settings import META, Settings
from qtmiddleware.config.tree import at
from qtmiddleware.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

SCHEMA_KEY: Final = "$schema"
"""The one key of a file that is no setting: it tells editors where the schema is."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_Path = tuple[str, ...]


def checked(values: Mapping[Any, Any], source: str) -> tuple[dict[str, Any], list[ConfigError]]:
    """What a layer sets, by field names and in the settings' types, and everything that is wrong with it."""
    from pydantic import ValidationError

    errors: list[ConfigError] = []
    spelled = _spelled(values, Settings, (), source, errors)
    try:
        found = settings_model().model_validate(spelled).model_dump(exclude_unset=True)
    except ValidationError as error:
        return {}, [*errors, *_explained(error, source)]
    # Whatever is set is shown by `qtm config show`, and much of it is sent or written somewhere.
    return found, [*errors, *(strayed(key.name, source) for key in all_keys() if holds_key(at(found, key)))]


@cache
def settings_model() -> type[BaseModel]:
    """The pydantic model of all settings: same fields, limits and defaults, camelCase or snake_case."""
    return _model(Settings)


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a config file, with every key's meaning, default and limits."""
    schema = settings_model().model_json_schema(by_alias=True)
    _without_titles(schema)
    definitions = {name: schema["$defs"][name] for name in sorted(schema["$defs"])}
    _with_groups(Settings, schema["properties"], definitions)
    editors = {SCHEMA_KEY: {"type": "string", "description": "Where this schema is, for editors."}}
    schema |= {"properties": editors | schema["properties"], "$defs": definitions}
    return {"$schema": _DIALECT, "title": "qtmiddleware config", **schema}


def _model(cls: type[Any]) -> type[BaseModel]:
    from pydantic import ConfigDict, Field, create_model

    config = ConfigDict(
        title=cls.__name__,
        alias_generator=camel,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
    )
    definitions: dict[str, Any] = {}
    for field, hint in members(cls):
        if is_dataclass(hint):
            inner: Any = _model(cast("type[Any]", hint))
            definitions[field.name] = (inner, Field(default_factory=inner, **field.metadata[META]))
        else:
            definitions[field.name] = (hint, Field(default=default_of(field), **field.metadata[META]))
    return create_model(cls.__name__, __config__=config, __doc__=cls.__doc__, **definitions)


def _with_groups(cls: type[Any], properties: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Write the groups in one way (pydantic's differs from release to release), with their shorthands."""
    for field, hint in members(cls):
        if not is_dataclass(hint):
            continue
        group = cast("type[Any]", hint)
        place = f"#/$defs/{group.__name__}"
        entry: dict[str, Any] = {"description": field.metadata[META]["description"]}
        if field.name in SHORTHANDS:
            short = f"{place}/properties/{camel(SHORTHANDS[field.name])}"
            entry["anyOf"] = [{"$ref": place}, {"$ref": short}]
        else:
            entry["$ref"] = place
        properties[camel(field.name)] = entry
        _with_groups(group, definitions[group.__name__]["properties"], definitions)


def _without_titles(node: Any) -> None:
    """Take out the titles pydantic makes of the keys: they say nothing the keys do not."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for inner in node.values():
            _without_titles(inner)


def _spelled(
    values: Mapping[Any, Any], cls: type[Any], above: _Path, source: str, errors: list[ConfigError]
) -> dict[str, Any]:
    """*values* by field names, with the friendly spellings made plain; what cannot be placed goes to *errors*."""
    names = spellings(cls)
    found: dict[str, Any] = {}
    for written, value in values.items():
        if written == SCHEMA_KEY and not above:
            continue
        if not isinstance(written, str) or written not in names:
            errors.append(unknown(written, above, [camel(field.name) for field, _ in members(cls)], source))
            continue
        name, hint = names[written]
        path = (*above, name)
        if name in found:
            errors.append(_twice(path, source))
        elif is_dataclass(hint):
            found[name] = _group(value, hint, path, source, errors)
        else:
            key = keys_by_path()[path]
            found[name] = _prompts(key, value, source, errors) if key.kind == "object" else _friendly(key, value)
    return found


def _group(value: Any, hint: Any, path: _Path, source: str, errors: list[ConfigError]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return _spelled(value, hint, path, source, errors)
    short = keys_by_path().get((*path, SHORTHANDS.get(path[-1], "")))
    if short and _suits(short, value):
        return {short.path[-1]: _friendly(short, value)}
    allowed = "an object" + (f", or for {short.name} alone {short.allowed}" if short else "")
    errors.append(wrong(dotted(path), value, allowed, source))
    return {}


def _prompts(key: Key, value: Any, source: str, errors: list[ConfigError]) -> Any:
    """Instructions by the plain names of what they instruct; one that would never be used is an error."""
    if not isinstance(value, Mapping):
        return value
    plain = {fold(name): name for name in PROMPT_NAMES}
    errors.extend(unknown(name, key.path, PROMPT_NAMES, source) for name in value if fold(str(name)) not in plain)
    return {plain[fold(str(name))]: text for name, text in value.items() if fold(str(name)) in plain}


def _suits(key: Key, value: Any) -> bool:
    """Whether a bare *value* in a group's place can only be meant for *key*."""
    if value is None:
        return key.nullable
    return isinstance(value, bool if key.kind == "bool" else str | os.PathLike)


def _friendly(key: Key, value: Any) -> Any:
    """*value* as the settings keep it, where there is but one reading of it; else as it is, to be refused."""
    if isinstance(value, os.PathLike) and key.path[-1].endswith("path"):
        value = os.fspath(value)
    if isinstance(value, str):
        plain = str.__str__(value)
        return next((choice for choice in key.choices if fold(choice) == fold(plain)), plain)
    match key.kind:
        case "int" | "float":
            return _number(key.kind, value)
        case "list" if isinstance(value, list):
            return tuple(value)
        case "list" if isinstance(value, set | frozenset):
            return tuple(sorted(value, key=str))
        case _:
            return value


def _number(kind: str, value: Any) -> Any:
    """A Python number for any other kind of number; ``4.0`` is whole, for JSON does not tell it from ``4``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    if isinstance(value, int):
        return int(value)
    try:
        if kind == "float":
            return float(value)
        whole = math.trunc(value)
    except (OverflowError, ValueError):  # infinite, not a number, or too large for a float
        return value
    return whole if value == whole else value


def _twice(path: _Path, source: str) -> ConfigError:
    both = f"{camel(path[-1])} and {path[-1]}"
    line = f"{dotted(path)} is written twice, as {both} ({source}); allowed: one of them"
    return ConfigError(line, path=dotted(path), allowed="one of them", source=source)


def _explained(error: ValidationError, source: str) -> Iterator[ConfigError]:
    """A pydantic error in the words of the settings."""
    for detail in error.errors(include_url=False, include_context=False):
        path, rest = _split(detail["loc"])
        key = keys_by_path()[path]
        inner = {"list": "a text", "object": "a text"}.get(key.kind, key.allowed)
        where = ".".join([key.name, *map(str, rest)])
        yield wrong(where, detail["input"], inner if rest else key.allowed, source)


def _split(loc: tuple[int | str, ...]) -> tuple[_Path, tuple[int | str, ...]]:
    """The option a location lies in, and what of the location lies within its value."""
    names = {key.name: key.path for key in keys_by_path().values()}
    for length in range(len(loc), 0, -1):
        written = dotted(tuple(map(str, loc[:length])))
        if written in names:
            return names[written], loc[length:]
    raise LookupError(loc)
