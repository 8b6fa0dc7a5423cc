"""Check users' settings with pydantic, and build the JSON schema of config files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args, get_origin

from qtmiddleware.config.errors import (
    build_misplaced_key_error,
    build_unknown_key_error,
    build_value_error,
    contains_api_key,
    fold_name,
)
from qtmiddleware.config.keys import (
    SHORTHANDS,
    Key,
    format_dotted_key,
    get_value,
    index_keys_by_path,
    list_all_keys,
    to_camel_case,
)
from qtmiddleware.config.options import META, NAMES, get_default
from qtmiddleware.config.own_transforms import (
    TRANSFORMS_KEY,
    allow_own_transforms,
    find_name_error,
    normalize_transforms,
)
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

IGNORED_KEYS: Final = {
    "$schema": "Where this schema is, for editors.",
    "$comment": "What the file is for, for people.",
}
"""The keys of a config file that are not settings, with their meanings."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_Path = tuple[str, ...]


def check_settings_layer(
    values: Mapping[Any, Any], source: str, user_transform_names: Collection[str] = ()
) -> tuple[dict[str, Any], list[ConfigError]]:
    """Check the settings from one source, and convert the values to the types in `Settings`.

    Args:
        values: The settings, as the user wrote them.
        source: The name of the source, for errors.
        user_transform_names: The names of the transforms that users define in any source.

    Returns:
        The converted values, by field name; empty if pydantic rejects a value.
        The errors.
    """
    from pydantic import ValidationError

    errors: list[ConfigError] = []
    normalized = _normalize_group_mapping(values, Settings, (), source, errors)
    errors.extend(find_name_error(normalized, user_transform_names, source))
    # Unset keys are excluded, because the defaults of this layer must not override other layers.
    try:
        checked = build_settings_model().model_validate(normalized).model_dump(exclude_unset=True)
    except ValidationError as error:
        return {}, [*errors, *_translate_validation_error(error, source)]
    # `qtm config show` prints all settings, and many are sent to services or written to files.
    errors.extend(
        build_misplaced_key_error(key.name, source)
        for key in list_all_keys()
        if contains_api_key(get_value(checked, key))
    )
    return checked, errors


@cache
def build_settings_model() -> type[BaseModel]:
    """Return a pydantic model with the fields, limits and defaults of `Settings`.

    The model accepts keys in camelCase and in snake_case.
    """
    return _build_model(Settings)


def build_json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a config file.

    The schema describes every key with its default and limits, for editors and validators.
    """
    schema = build_settings_model().model_json_schema(by_alias=True)
    _remove_titles(schema)
    definitions = {name: schema["$defs"][name] for name in sorted(schema["$defs"])}
    _rewrite_group_references(Settings, schema["properties"], definitions)
    other_keys = {
        name: {"type": "string", "description": doc} for name, doc in IGNORED_KEYS.items()
    }
    schema |= {"properties": other_keys | schema["properties"], "$defs": definitions}
    return {"$schema": _DIALECT, "title": "qtmiddleware config", **schema}


def _build_model(settings_class: Any) -> type[BaseModel]:
    """Return a pydantic model of *settings_class* and its subgroups."""
    from pydantic import ConfigDict, Field, create_model

    # Strict, because the values were converted before. Pydantic would also accept "yes" as true.
    config = ConfigDict(
        title=settings_class.__name__,
        alias_generator=to_camel_case,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
    )
    definitions: dict[str, Any] = {}
    for field in fields(settings_class):
        if is_dataclass(field.type):
            inner: Any = _build_model(field.type)
            definitions[field.name] = (inner, Field(default_factory=inner, **field.metadata[META]))
        else:
            hint, limits = field.type, dict(field.metadata[META])
            if get_origin(hint) is Mapping:
                about = Field(default=get_default(field), description=limits.pop("description"))
                # The limits of a mapping are those of its values.
                hint = Mapping[str, Annotated[get_args(hint)[1], Field(**limits)]]  # type: ignore[misc]
            else:
                about = Field(default=get_default(field), **limits)
            definitions[field.name] = (hint, about)
    return create_model(
        settings_class.__name__, __config__=config, __doc__=settings_class.__doc__, **definitions
    )


def _rewrite_group_references(
    settings_class: Any, properties: dict[str, Any], definitions: dict[str, Any]
) -> None:
    """Rewrite the references to subgroups in a JSON schema, and allow the groups' shorthands.

    Otherwise the schema would depend on the release of pydantic. The schema is changed in place.

    Args:
        settings_class: The class of the settings group.
        properties: The properties of this group in the schema.
        definitions: The schemas of all groups, by class name.
    """
    for field in fields(settings_class):
        if not is_dataclass(field.type):
            schema = properties[to_camel_case(field.name)]
            allow_own_transforms(field.type, schema)
            if field.metadata[NAMES]:
                spellings = [
                    spelling
                    for name in field.metadata[NAMES]
                    for spelling in dict.fromkeys(_list_spellings(name))
                ]
                schema["propertyNames"] = {"enum": spellings}
            continue
        group = cast("type[Any]", field.type)
        place = f"#/$defs/{group.__name__}"
        entry: dict[str, Any] = {"description": field.metadata[META]["description"]}
        if field.name in SHORTHANDS:
            short = f"{place}/properties/{to_camel_case(SHORTHANDS[field.name])}"
            entry["anyOf"] = [{"$ref": place}, {"$ref": short}]
        else:
            entry["$ref"] = place
        properties[to_camel_case(field.name)] = entry
        _rewrite_group_references(group, definitions[group.__name__]["properties"], definitions)


def _remove_titles(node: Any) -> None:
    """Remove pydantic's titles from a JSON schema, because they only repeat the keys."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for inner in node.values():
            _remove_titles(inner)


def _normalize_group_mapping(
    values: Mapping[Any, Any],
    settings_class: Any,
    group_path: _Path,
    source: str,
    errors: list[ConfigError],
) -> dict[str, Any]:
    """Return the settings of one group by field name, without shorthands.

    A shorthand sets a group by a single value, which is the value of one of its options.

    Args:
        values: The settings of the group, as the user wrote them.
        settings_class: The class of the group.
        group_path: The field names that lead to the group; empty for the top level.
        source: The name of the source, for errors.
        errors: The list to which errors are added, such as an unknown or duplicate key.
    """
    known = {
        spelling: field
        for field in fields(settings_class)
        for spelling in _list_spellings(field.name)
    }
    normalized: dict[str, Any] = {}
    for written_key, value in values.items():
        # Editors and people use these keys at the top level of a file.
        if not group_path and written_key in IGNORED_KEYS:
            continue
        if not isinstance(written_key, str) or written_key not in known:
            errors.append(
                build_unknown_key_error(
                    written_key,
                    group_path,
                    [to_camel_case(field.name) for field in fields(settings_class)],
                    source,
                )
            )
            continue
        field = known[written_key]
        name, hint = field.name, field.type
        path = (*group_path, name)
        # Both spellings of a key are allowed, so one mapping may contain a key twice.
        if name in normalized:
            errors.append(_build_repeat_error(path, source))
        elif is_dataclass(hint):
            normalized[name] = _normalize_group_or_shorthand(value, hint, path, source, errors)
        elif field.metadata[NAMES] and isinstance(value, Mapping):
            normalized[name] = _normalize_names(value, field.metadata[NAMES], path, source, errors)
        elif path == TRANSFORMS_KEY and isinstance(value, Mapping):
            normalized[name] = dict(normalize_transforms(value, source, errors))
        else:
            normalized[name] = _normalize_value(index_keys_by_path()[path], value)
    return normalized


def _list_spellings(name: str) -> tuple[str, str]:
    return name, to_camel_case(name)


def _normalize_group_or_shorthand(
    value: Any, settings_class: Any, path: _Path, source: str, errors: list[ConfigError]
) -> dict[str, Any]:
    """Return the values of one settings group by field name.

    *value* is a mapping or the value of the group's shorthand. For any other value, adds an error
    to *errors* and returns an empty dict.
    """
    if isinstance(value, Mapping):
        return _normalize_group_mapping(value, settings_class, path, source, errors)
    short = index_keys_by_path().get((*path, SHORTHANDS.get(path[-1], "")))
    if short and (
        short.is_nullable
        if value is None
        else isinstance(value, bool if short.kind == "bool" else str)
    ):
        return {short.path[-1]: _normalize_value(short, value)}
    allowed = "an object" + (f" (or {short.allowed}, which sets {short.name})" if short else "")
    errors.append(build_value_error(format_dotted_key(path), value, allowed, source))
    return {}


def _normalize_names(
    values: Mapping[Any, Any],
    allowed_names: Sequence[str],
    path: _Path,
    source: str,
    errors: list[ConfigError],
) -> dict[str, Any]:
    """Return *values*, the mapping at *path*, with its names in snake_case.

    Adds an error to *errors* for each name that is unknown or given twice.
    """
    known = {spelling: name for name in allowed_names for spelling in _list_spellings(name)}
    normalized: dict[str, Any] = {}
    for written_name, value in values.items():
        if not isinstance(written_name, str) or written_name not in known:
            camel_names = list(map(to_camel_case, allowed_names))
            errors.append(build_unknown_key_error(written_name, path, camel_names, source))
        elif known[written_name] in normalized:
            errors.append(_build_repeat_error((*path, known[written_name]), source))
        else:
            normalized[known[written_name]] = value
    return normalized


def _normalize_value(key: Key, value: Any) -> Any:
    """Convert *value* to the type of *key*, if its meaning is clear.

    Choices get their standard spelling, lists become tuples, and 4.0 becomes 4 for an ``int``.
    Other values are returned unchanged.
    """
    match key.kind, value:
        case "choice", str():
            return next(
                (choice for choice in key.choices if fold_name(choice) == fold_name(value)), value
            )
        case "list", list():
            return tuple(value)
        case "int", float() if value.is_integer():  # In JSON, 4.0 and 4 are equal.
            return int(value)
        case _:
            return value


def _build_repeat_error(path: _Path, source: str) -> ConfigError:
    """Return the error for a key that one source sets in camelCase and in snake_case."""
    spellings = f"{to_camel_case(path[-1])} and {path[-1]}"
    line = f"{format_dotted_key(path)} is set twice, as {spellings} ({source}); keep one of them"
    return ConfigError(line, path=format_dotted_key(path), allowed="one of them", source=source)


def _translate_validation_error(error: ValidationError, source: str) -> Iterator[ConfigError]:
    """Yield a `ConfigError` for each of pydantic's errors, with the name of the setting."""
    for detail in error.errors(include_url=False, include_context=False):
        path, inner_location = _split_location(detail["loc"])
        key = index_keys_by_path()[path]
        where = ".".join([key.name, *(to_camel_case(str(name)) for name in inner_location)])
        allowed = key.allowed_item if inner_location else key.allowed
        yield build_value_error(where, detail["input"], allowed, source)


def _split_location(location: tuple[int | str, ...]) -> tuple[_Path, tuple[int | str, ...]]:
    """Split the location of a pydantic error.

    Returns:
        The path of the option.
        The location inside the option's value; empty if the error is about the whole value.
    """
    names = {key.name: key.path for key in index_keys_by_path().values()}
    for length in range(len(location), 0, -1):
        name = format_dotted_key(tuple(map(str, location[:length])))
        if name in names:
            return names[name], location[length:]
    raise LookupError(location)
