"""Check users' settings with pydantic."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import errors, introspection
from qtmiddleware.config.reading import Layer
from qtmiddleware.config.settings import PROMPT_NAMES, OwnTransform, Settings, to_camel_case
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
    """Return *settings* with the values in *layers*, the strongest last, and each value's source.

    Raises `ConfigError` with a line per wrong value.
    """
    values: Any = asdict(settings)
    sources = dict(sources)
    for source, layer in layers:
        values = _merge(values, layer, Settings, (), source, sources)
    try:
        checked = build_adapter().validate_python(values)
    except ValidationError as error:
        refusals = [
            # Where a value is missing, pydantic shows the object around it.
            _explain(row["loc"], None if row["type"] == "missing" else row["input"], sources)
            for row in error.errors(include_url=False, include_context=False)
        ]
    else:
        refusals = [
            _explain(path, value, sources, allowed)
            for path, value, allowed in _find_conflicts(checked)
        ]
    if not refusals:
        return checked, sources
    first = refusals[0]
    first.args = ("\n".join(dict.fromkeys(map(str, refusals))),)
    raise first from None


def _merge(
    old: Any, value: Any, hint: Any, path: Path, source: str, sources: dict[Path, str]
) -> Any:
    """Return the *old* value at *path*, overridden by *value*. Objects are merged name by name.

    Writes *source* into *sources* for the value and every value in it.
    """
    sources[path] = source
    # `qtm config show` prints all settings, and many are sent to services or written to files.
    for text in (*path[-1:], value):
        if isinstance(text, str) and errors.contains_api_key(text):
            raise _explain(path, text, sources, f"a value without a key ({errors.KEYS_ADVICE})")
    type_ = introspection.unwrap(hint)[0]
    if is_dataclass(type_) and not isinstance(value, Mapping):
        value = {introspection.list_names(hint)[0]: value}
    if isinstance(value, list | tuple):
        part = introspection.find_part(hint, 0)
        return tuple(
            _merge(None, item, part, (*path, place), source, sources)
            for place, item in enumerate(value)
        )
    if isinstance(value, Mapping):
        # A transform is defined as a whole: two definitions are not merged.
        is_merged = isinstance(old, Mapping) and type_ is not OwnTransform
        merged = dict(old) if is_merged else {}
        for written_name, item in value.items():
            # Editors and people use these keys at the top level of a file.
            if path or written_name not in ("$schema", "$comment"):
                name = introspection.find_name(hint, written_name)
                place = (*path, name)
                part = introspection.find_part(hint, name)
                merged[name] = _merge(merged.get(name), item, part, place, source, sources)
        return merged
    if isinstance(value, str):
        choices = {errors.fold_name(choice): choice for choice in introspection.list_choices(hint)}
        return choices.get(errors.fold_name(value), value)
    return value


def _explain(
    location: Path, value: Any, sources: Mapping[Path, str], allowed: str = ""
) -> ConfigError:
    """Return the error for *value* at *location*, which may end with words of pydantic's own.

    *allowed* says what is allowed there; by default what the annotation allows.
    """
    holder: Any = None
    hint: Any = Settings
    path: Path = ()
    shown: list[str] = []
    # Follow the location as far as it leads through settings.
    for name in location:
        names = introspection.list_names(hint)
        part = introspection.find_part(hint, name)
        is_name_of_pydantic = part is None and not names
        if is_name_of_pydantic:
            break
        shown.append(to_camel_case(name) if name in names else errors.format_key(str(name)))
        path, holder, hint = (*path, name), hint, part
    # The source of the value itself, or else of the nearest object around it.
    holders = (path[:length] for length in range(len(path), 0, -1))
    source = next((sources[place] for place in holders if place in sources), "default")
    full_key = ".".join(shown)
    is_known = hint is not None
    if is_known:
        allowed = allowed or introspection.describe_allowed_values(hint)
        return errors.build_value_error(full_key, value, allowed, source)
    known_names = [*map(to_camel_case, introspection.list_names(holder))]
    # The names that may be meant, with their keys: those of any option, or rather those here.
    places = {
        to_camel_case(key.path[-1]): key.name for key in reversed(introspection.list_all_keys())
    }
    places |= {name: ".".join([*shown[:-1], name]) for name in known_names}
    allowed = f"the names here are {', '.join(known_names)}"
    return errors.build_unknown_error(full_key, str(path[-1]), source, places, allowed)


def _find_conflicts(settings: Settings) -> Iterator[tuple[Path, Any, str]]:
    """Yield the path, the value and the allowed values of each option that others rule out."""
    built_in = {errors.fold_name(name) for name in (*TRANSFORMS, *PROMPT_NAMES)}
    for name in settings.transforms:
        # `transformationType` ignores case and dashes, and would mean the built-in one.
        if errors.fold_name(name) in built_in:
            yield ("transforms", name), name, "another name than a built-in one"
    kinds = (*TRANSFORMS, *settings.transforms)
    if settings.transformation_type not in kinds:
        yield ("transformation_type",), settings.transformation_type, f"one of {', '.join(kinds)}"
    if settings.chunk_overlap >= settings.chunk_size:
        allowed = f"less than chunkSize, which is {settings.chunk_size}"
        yield ("chunk_overlap",), settings.chunk_overlap, allowed
    for name in ("index_path", "data_path", "embedding_model"):
        value = getattr(settings, name)
        try:
            pathlib.Path(value or "").expanduser()
        except RuntimeError:
            # A user without an account has no home, as in some containers.
            yield (name,), value, "a path in a home that this system knows"
    if not any(settings.fusion.weights.values()):
        yield ("fusion", "weights"), 0, "above 0 for at least one kind of text"
    hybrid, store = settings.hybrid, settings.store
    if hybrid.enabled and not (hybrid.vector_weight or hybrid.bm25_weight):
        yield ("hybrid", "vector_weight"), 0, "above 0 if hybrid.bm25Weight is 0"
    if store.kind == "pinecone" and not (store.index or store.host):
        yield ("store", "index"), store.index, "the name of a Pinecone index, or store.host"
