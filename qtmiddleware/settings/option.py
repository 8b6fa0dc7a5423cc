"""How an option is written down: its default, its meaning and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

META: Final = "option"
"""The metadata key under which a field keeps its meaning and limits."""


def option(default: Any, doc: str, **limits: Any) -> Any:
    """A field with its *default*, its meaning and the limits pydantic knows (``ge``, ``le``, ``gt``, ``min_length``)."""
    meta = {META: {"description": doc, **limits}}
    if isinstance(default, Mapping):
        frozen = dict(default)
        return field(default_factory=lambda: dict(frozen), metadata=meta)
    return field(default=default, metadata=meta)


def group(cls: type[Any], doc: str) -> Any:
    """A field that holds a group of options."""
    return field(default_factory=cls, metadata={META: {"description": doc}})
