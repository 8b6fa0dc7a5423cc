"""How an option is declared: its default, its meaning, its limits, and what else depends on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final, Literal

META: Final = "option"
"""The metadata key under which a field keeps its meaning and limits."""

MARKS: Final = "marks"

Mark = Literal["reply", "model", "middleware"]
"""What depends on an option: the texts a model replies with (their cache key), the model object that is made, or what
belongs to the whole middleware and cannot be changed by one call."""


def option(default: Any, doc: str, *, marks: str = "", **limits: Any) -> Any:
    """Returns a field with its *default*, its meaning and the limits pydantic knows (``ge``, ``le``, ``min_length``).

    *marks* are `Mark` words with blanks between them.
    """
    meta = {META: {"description": doc, **limits}, MARKS: frozenset(marks.split())}
    if isinstance(default, Mapping):
        frozen = dict(default)
        return field(default_factory=lambda: dict(frozen), metadata=meta)
    return field(default=default, metadata=meta)


def group(cls: type[Any], doc: str, *, marks: str = "") -> Any:
    """Returns a field that holds a group of options; its *marks* are those of all of them."""
    return field(default_factory=cls, metadata={META: {"description": doc}, MARKS: frozenset(marks.split())})


@cache
def marked(cls: Hashable, mark: Mark) -> tuple[str, ...]:
    """Returns the options of the settings class *cls* that bear *mark*, dotted, in their order."""
    return tuple(_marked(cls, mark, ""))


def _marked(cls: Any, mark: Mark, above: str) -> Iterator[str]:
    for each in fields(cls):
        inner = each.default_factory
        if mark in each.metadata[MARKS]:
            yield above + each.name
        elif isinstance(inner, type) and is_dataclass(inner):
            yield from _marked(inner, mark, f"{above}{each.name}.")


def key_of(settings: Any, mark: Mark) -> tuple[Any, ...]:
    """Returns the values of *settings* at the options that bear *mark*, hashable."""
    cls: Any = type(settings)
    return tuple(map(_hashable, _getter(cls, mark)(settings)))


@cache
def _getter(cls: Hashable, mark: Mark) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*marked(cls, mark))


def _hashable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value
