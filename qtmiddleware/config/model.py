"""The settings as pydantic models, which check what users write and make the JSON schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from qtmiddleware.config.errors import (
    bad_value,
    fold,
    holds_key,
    misplaced_key,
    unknown_key,
)
from qtmiddleware.config.keys import (
    PROMPT_NAMES,
    SHORTHANDS,
    Key,
    all_keys,
    camel,
    dotted,
    get_value,
    keys_by_path,
)
from qtmiddleware.config.options import META, default_of
from qtmiddleware.config.own_names import (
    TRANSFORMS_KEY,
    find_unknown_names,
    normalize_transforms,
    write_open_end,
)
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

NO_SETTINGS: Final = {
    "$schema": "Where this schema is, for editors.",
    "$comment": "What the file is for, for people.",
}
"""The keys of a file that set nothing, with their meaning."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_Path = tuple[str, ...]
_PROMPTS: Final[_Path] = ("llm", "prompts")


def check(
    values: Mapping[Any, Any], source: str, own: Collection[str] = ()
) -> tuple[dict[str, Any], list[ConfigError]]:
    """Returns what a layer sets, by field names and in the settings' types, and everything that is wrong with it.

    *own* are the names of the transforms that any layer defines.
    """
    from pydantic import ValidationError

    errors: list[ConfigError] = []
    normalized = _normalize(values, Settings, (), source, errors)
    errors.extend(find_unknown_names(normalized, own, source))
    try:
        checked = settings_model().model_validate(normalized).model_dump(exclude_unset=True)
    except ValidationError as error:
        return {}, [*errors, *_explain(error, source)]
    # Whatever is set is shown by `qtm config show`, and much of it is sent or written somewhere.
    errors.extend(
        misplaced_key(key.name, source) for key in all_keys() if holds_key(get_value(checked, key))
    )
    return checked, errors


@cache
def settings_model() -> type[BaseModel]:
    """Returns the pydantic model of all settings: same fields, limits and defaults, camelCase or snake_case."""
    return _model(Settings)


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of a config file, with every key's meaning, default and limits."""
    schema = settings_model().model_json_schema(by_alias=True)
    _drop_titles(schema)
    definitions = {name: schema["$defs"][name] for name in sorted(schema["$defs"])}
    _write_groups(Settings, schema["properties"], definitions)
    others = {name: {"type": "string", "description": doc} for name, doc in NO_SETTINGS.items()}
    schema |= {"properties": others | schema["properties"], "$defs": definitions}
    return {"$schema": _DIALECT, "title": "qtmiddleware config", **schema}


def _model(cls: Any) -> type[BaseModel]:
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
    for field in fields(cls):
        if is_dataclass(field.type):
            inner: Any = _model(field.type)
            definitions[field.name] = (inner, Field(default_factory=inner, **field.metadata[META]))
        else:
            definitions[field.name] = (
                field.type,
                Field(default=default_of(field), **field.metadata[META]),
            )
    return create_model(cls.__name__, __config__=config, __doc__=cls.__doc__, **definitions)


def _write_groups(cls: Any, properties: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Write the groups in one way (pydantic's differs from release to release), with their shorthands."""
    for field in fields(cls):
        if not is_dataclass(field.type):
            write_open_end(field.type, properties[camel(field.name)])
            continue
        group = cast("type[Any]", field.type)
        place = f"#/$defs/{group.__name__}"
        entry: dict[str, Any] = {"description": field.metadata[META]["description"]}
        if field.name in SHORTHANDS:
            short = f"{place}/properties/{camel(SHORTHANDS[field.name])}"
            entry["anyOf"] = [{"$ref": place}, {"$ref": short}]
        else:
            entry["$ref"] = place
        properties[camel(field.name)] = entry
        _write_groups(group, definitions[group.__name__]["properties"], definitions)


def _drop_titles(node: Any) -> None:
    """Take out the titles pydantic makes of the keys: they say nothing the keys do not."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for inner in node.values():
            _drop_titles(inner)


def _normalize(
    values: Mapping[Any, Any], cls: Any, above: _Path, source: str, errors: list[ConfigError]
) -> dict[str, Any]:
    """Returns *values* by field names, shorthands and choices in their plain form; unknown keys go to *errors*."""
    known = {spelling: field for field in fields(cls) for spelling in _spellings(field.name)}
    normalized: dict[str, Any] = {}
    for written, value in values.items():
        if not above and written in NO_SETTINGS:
            continue
        if not isinstance(written, str) or written not in known:
            errors.append(
                unknown_key(written, above, [camel(field.name) for field in fields(cls)], source)
            )
            continue
        name, hint = known[written].name, known[written].type
        path = (*above, name)
        if name in normalized:
            errors.append(_double_spelling(path, source))
        elif is_dataclass(hint):
            normalized[name] = _normalize_group(value, hint, path, source, errors)
        elif path == _PROMPTS and isinstance(value, Mapping):
            normalized[name] = _normalize_prompts(value, source, errors)
        elif path == TRANSFORMS_KEY and isinstance(value, Mapping):
            normalized[name] = dict(normalize_transforms(value, source, errors))
        else:
            normalized[name] = _normalize_value(keys_by_path()[path], value)
    return normalized


def _spellings(name: str) -> tuple[str, str]:
    return name, camel(name)


def _normalize_group(
    value: Any, hint: Any, path: _Path, source: str, errors: list[ConfigError]
) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return _normalize(value, hint, path, source, errors)
    short = keys_by_path().get((*path, SHORTHANDS.get(path[-1], "")))
    if short and (
        short.nullable
        if value is None
        else isinstance(value, bool if short.kind == "bool" else str)
    ):
        return {short.path[-1]: _normalize_value(short, value)}
    allowed = "an object" + (f" (or {short.allowed}, which sets {short.name})" if short else "")
    errors.append(bad_value(dotted(path), value, allowed, source))
    return {}


def _normalize_prompts(
    value: Mapping[Any, Any], source: str, errors: list[ConfigError]
) -> dict[str, Any]:
    """Returns own instructions by the names of what they instruct; one that would never be used is an error."""
    names = {spelling: name for name in PROMPT_NAMES for spelling in _spellings(name)}
    errors.extend(
        unknown_key(written, _PROMPTS, PROMPT_NAMES, source)
        for written in value
        if written not in names
    )
    return {names[written]: text for written, text in value.items() if written in names}


def _normalize_value(key: Key, value: Any) -> Any:
    """Returns *value* in the type the settings keep it in, where there is but one reading of it; else as it is."""
    match key.kind, value:
        case "choice", str():
            return next((choice for choice in key.choices if fold(choice) == fold(value)), value)
        case "list", list():
            return tuple(value)
        case "int", float() if value.is_integer():  # JSON does not tell 4.0 from 4
            return int(value)
        case _:
            return value


def _double_spelling(path: _Path, source: str) -> ConfigError:
    both = f"{camel(path[-1])} and {path[-1]}"
    line = f"{dotted(path)} is set twice, as {both} ({source}); keep one of them"
    return ConfigError(line, path=dotted(path), allowed="one of them", source=source)


def _explain(error: ValidationError, source: str) -> Iterator[ConfigError]:
    """The errors of pydantic in the words of the settings."""
    for detail in error.errors(include_url=False, include_context=False):
        path, rest = _split(detail["loc"])
        key = keys_by_path()[path]
        inner = {"list": "a text", "object": "a text"}.get(key.kind, key.allowed)
        where = ".".join([key.name, *map(str, rest)])
        yield bad_value(where, detail["input"], inner if rest else key.allowed, source)


def _split(loc: tuple[int | str, ...]) -> tuple[_Path, tuple[int | str, ...]]:
    """Returns the option a location lies in, and what of the location lies within its value."""
    names = {key.name: key.path for key in keys_by_path().values()}
    for length in range(len(loc), 0, -1):
        written = dotted(tuple(map(str, loc[:length])))
        if written in names:
            return names[written], loc[length:]
    raise LookupError(loc)
