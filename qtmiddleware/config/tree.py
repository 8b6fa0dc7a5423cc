"""Settings as nested dicts by field names, and back: the form in which layers are laid over each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Final

from qtmiddleware.config.keys import Key, members

ABSENT: Final = object()
"""What `at` answers where nothing stands."""


def nested(group: Any) -> dict[str, Any]:
    """A settings object as nested dicts."""
    values = {field.name: getattr(group, field.name) for field, _ in members(type(group))}
    return {name: nested(value) if is_dataclass(value) else value for name, value in values.items()}


def built(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """The settings object that nested dicts describe; every field must be there."""
    parts = {}
    for field, hint in members(cls):
        value = values[field.name]
        parts[field.name] = built(hint, value) if is_dataclass(hint) else value  # type: ignore[arg-type]
    return cls(**parts)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """*below* with *above* on top; where both hold a mapping, the two are merged in turn."""
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        both[name] = merged(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return both


def at(values: Mapping[str, Any], key: Key) -> Any:
    """The value of *key*, or `ABSENT`."""
    found: Any = values
    for part in key.path:
        found = found.get(part, ABSENT)
        if found is ABSENT:
            break
    return found


def plain(value: Any) -> Any:
    """A setting's value as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
