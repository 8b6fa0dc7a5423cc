"""Check users' settings with pydantic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import errors, keys
from qtmiddleware.config.reading import Layer
from qtmiddleware.config.settings import PROMPT_NAMES, Settings, to_camel_case
from qtmiddleware.errors import ConfigError

Path = tuple[Any, ...]
"""The field names that lead to a setting, and the user's own names and places inside it."""


@cache
def build_adapter() -> TypeAdapter[Settings]:
    """Return pydantic's validator of `Settings`, which also describes the JSON schema."""
    return TypeAdapter(Settings)


def check_layers(
    settings: Settings, sources: Mapping[Path, str], layers: Sequence[Layer]
) -> tuple[Settings, dict[Path, str]]:
    """Return *settings* with the values in *layers*, and the source of each value that is set.

    A later layer overrides an earlier layer.

    Raises:
        ConfigError: A setting is wrong. The message has a line per wrong value.
    """
    values, sources = asdict(settings), dict(sources)
    for source, layer in layers:
        spelled = _spell(layer, Settings, (), source, sources)
        # A transform is defined as a whole: two definitions are not merged.
        if isinstance(own := spelled.get("transforms"), Mapping):
            spelled["transforms"], values["transforms"] = {**values["transforms"], **own}, {}
        values = keys.merge_settings(values, spelled)
    kind, own = values["transformation_type"], values["transforms"]
    if isinstance(kind, str) and isinstance(own, Mapping) and kind not in TRANSFORMS:
        values["transformation_type"] = errors.find_same_name(kind, map(str, own)) or kind
    try:
        checked = build_adapter().validate_python(values)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        found = [_explain(problem, sources) for problem in problems]
        found[0].args = ("\n".join(dict.fromkeys(map(str, found))),)
        raise found[0] from None
    for path, value, allowed in _find_conflicts(checked):
        source = _find_source(path, sources)
        raise errors.build_value_error(_format_path(path), value, allowed, source)
    return checked, sources


def _spell(value: Any, hint: Any, path: Path, source: str, sources: dict[Path, str]) -> Any:
    """Return *value* with known keys and choices in their standard spelling, without shorthands.

    Notes in *sources* that *source* sets each part of the value.
    """
    sources[path] = source
    type_, names = keys.unwrap(hint)[0], keys.list_names(hint)
    shorthand = getattr(type_, "shorthand", "")
    if shorthand and not isinstance(value, Mapping):
        value = {shorthand: value}
    if isinstance(value, list | tuple):
        if not (names and all(isinstance(item, str) for item in value)):
            part = keys.find_part(hint, 0)
            return tuple(
                _spell(item, part, (*path, place), source, sources)
                for place, item in enumerate(value)
            )
        value = dict.fromkeys(value)
    if isinstance(value, Mapping):
        spelled: dict[Any, Any] = {}
        for written_name, item in value.items():
            # Editors and people use these keys at the top level of a file.
            if not path and written_name in ("$schema", "$comment"):
                continue
            name = keys.find_name(hint, written_name)
            if name in spelled:
                advice = f"keep one of {to_camel_case(name)} and {name}"
                raise _build_error((*path, name), "is set twice", source, advice)
            _refuse_api_key(name, path, source)
            spelled[name] = _spell(item, keys.find_part(hint, name), (*path, name), source, sources)
        return spelled
    if isinstance(value, str):
        _refuse_api_key(value, path, source)
        return errors.find_same_name(value, keys.list_choices(hint)) or value
    # In JSON, 4.0 and 4 are equal.
    is_whole = type_ is int and isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def _refuse_api_key(text: Any, path: Path, source: str) -> None:
    # `qtm config show` prints all settings, and many are sent to services or written to files.
    if isinstance(text, str) and errors.contains_api_key(text):
        raise _build_error(path, "must not hold a key", source, errors.KEYS_ADVICE)


def _explain(problem: Mapping[str, Any], sources: Mapping[Path, str]) -> ConfigError:
    """Return the error for one of pydantic's errors."""
    hint: Any = Settings
    path: Path = ()
    for name in problem["loc"]:
        part = keys.find_part(hint, name)
        if part is None and keys.list_names(hint):
            return _explain_unknown_key((*path, name), hint, sources)
        if part is None:
            break
        hint, path = part, (*path, name)
    value = None if problem["type"] == "missing" else problem["input"]
    allowed, source = keys.describe_allowed_values(hint), _find_source(path, sources)
    return errors.build_value_error(_format_path(path), value, allowed, source)


def _explain_unknown_key(path: Path, holder: Any, sources: Mapping[Path, str]) -> ConfigError:
    """Return the error for the key at *path*, which *holder* does not have."""
    *parents, name = path
    names = [*map(to_camel_case, keys.list_names(holder))]
    places = {own: _format_path((*parents, own)) for own in names}
    for key in keys.list_all_keys():
        places.setdefault(to_camel_case(key.path[-1]), key.name)
        places.setdefault(
            key.name, f"{to_camel_case(key.path[-1])} inside {to_camel_case(key.path[0])}"
        )
    allowed = f"the names here are {', '.join(names)}"
    source = _find_source(path, sources)
    return errors.build_unknown_error(_format_path(path), str(name), source, places, allowed)


def _find_conflicts(settings: Settings) -> Iterator[tuple[Path, Any, str]]:
    """Yield the path, the value and the allowed values of each option that others rule out."""
    for name, own in settings.transforms.items():
        # A name that differs only in case or dashes would be confused with the built-in one.
        if twin := errors.find_same_name(name, (*TRANSFORMS, *PROMPT_NAMES)):
            yield ("transforms", name), name, f"another name than the built-in {twin}"
        elif not re.fullmatch(r"[A-Za-z][\w-]{0,59}", name, re.ASCII):
            allowed = "named by at most 60 letters, digits, - and _, beginning with a letter"
            yield ("transforms", name), name, allowed
        if own.fields.get("keywords") is not None:
            allowed = "null, because keywords are not searched"
            yield ("transforms", name, "fields", "keywords"), own.fields["keywords"], allowed
    kinds = (*TRANSFORMS, *settings.transforms)
    if settings.transformation_type not in kinds:
        yield ("transformation_type",), settings.transformation_type, f"one of {', '.join(kinds)}"
    if settings.chunk_overlap >= settings.chunk_size:
        allowed = f"less than chunkSize, which is {settings.chunk_size}"
        yield ("chunk_overlap",), settings.chunk_overlap, allowed
    if not any(settings.fusion.weights.values()):
        yield ("fusion", "weights"), 0, "above 0 for at least one kind of text"
    hybrid, store, address = settings.hybrid, settings.store, settings.llm.base_url
    if hybrid.enabled and not (hybrid.vector_weight or hybrid.bm25_weight):
        yield ("hybrid", "vector_weight"), 0, "above 0 if hybrid.bm25Weight is 0"
    if store.kind == "pinecone" and not (store.index or store.host):
        yield ("store", "index"), store.index, "the name of a Pinecone index, or store.host"
    # Some services expect their keys in the address, but addresses are shown and logged.
    without = ", without a user name, password or query"
    if address is not None and not re.fullmatch(r"(?i)https?://[^@?#]*", address):
        allowed = f"an address that begins with http:// or https://{without}"
        yield ("llm", "base_url"), address, allowed
    if store.host is not None and re.search("[@?#]", store.host):
        yield ("store", "host"), store.host, f"the host of an index{without}"


def _build_error(path: Path, problem: str, source: str, advice: str) -> ConfigError:
    dotted = _format_path(path)
    return ConfigError(f"{dotted} {problem} ({source}); {advice}", path=dotted, source=source)


def _format_path(path: Path) -> str:
    options = keys.list_all_keys()
    known = {name for key in options for name in (*key.path, *keys.list_names(key.hint))}
    return ".".join(
        to_camel_case(name) if name in known else errors.format_key(name) for name in map(str, path)
    )


def _find_source(path: Path, sources: Mapping[Path, str]) -> str:
    """Return the source of the value at *path*, or of the nearest object that holds it."""
    while len(path) > 1 and path not in sources:
        path = path[:-1]
    return sources.get(path, "default")
