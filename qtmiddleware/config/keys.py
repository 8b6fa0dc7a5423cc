"""The keys of the config as a flat list, derived from the settings' dataclasses, and settings as nested dicts."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from qtmiddleware.catalogue import prompt_names
from qtmiddleware.config.options import MARKS, META, Mark, default_of
from qtmiddleware.config.settings import Settings

ENVIRONMENT_PREFIX: Final = "QTM_"

ABSENT: Final = object()
"""What `get_value` returns where nothing is set."""

SHORTHANDS: Final[Mapping[str, str]] = {
    "preprocess": "enabled",
    "keyword_evidence": "enabled",
    "escalation": "mode",
    "fusion": "method",
    "hybrid": "enabled",
    "rerank": "enabled",
    "store": "kind",
    "answer": "mode",
    "cache": "enabled",
    "log": "path",
    "glossary": "path",
}
"""Groups that may be written as one value, and the key that value is for: ``"fusion": "max"``, ``"cache": false``."""

PROMPT_NAMES: Final = (*prompt_names(), "context", "answer", "sub_answer", "synthesis")
"""What own instructions may be given for. ``all`` is three of these, each with its own."""


_OBJECTS: Final = ("object", "objects")
_WORDS: Final = {
    "bool": "true or false",
    "list": "a list of texts",
    "object": "an object of texts",
    "objects": "an object of objects, each with prompt and fields",
}


def camel(name: str) -> str:
    """Returns ``rrf_k`` as it is written in files: ``rrfK``."""
    head, *tail = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in tail)


def dotted(path: tuple[str, ...]) -> str:
    """Returns a path of field names as users write it: ``fusion.rrfK``."""
    return ".".join(map(camel, path))


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Key:
    """One option.

    *path* holds field names, *marks* what depends on it. *kind* is ``bool``, ``int``, ``float``,
    ``str``, ``choice``, ``list`` (of texts), ``object`` (of texts) or ``objects`` (an object of
    objects); *choices* is empty for all but ``choice``. One that *is_open* takes other names too,
    those of what users add.
    """

    path: tuple[str, ...]
    kind: str
    nullable: bool
    choices: tuple[str, ...]
    default: Any
    description: str
    limits: Mapping[str, Any]
    marks: frozenset[Mark]
    is_open: bool = False

    @property
    def name(self) -> str:
        """The key as it is written in messages and tables."""
        return dotted(self.path)

    def read(self, settings: Settings) -> Any:
        """Returns its value in *settings*, hashable."""
        return self.make_hashable(attrgetter(".".join(self.path))(settings))

    def make_hashable(self, value: Any) -> Any:
        """Returns *value*, one of this key's."""
        return _freeze(value) if self.kind in _OBJECTS and value is not None else value

    @property
    def environment(self) -> str:
        """The variable that sets it."""
        return ENVIRONMENT_PREFIX + "_".join(self.path).upper()

    @property
    def allowed(self) -> str:
        """What may stand there, in plain words."""
        return self._words() + (", or null" if self.nullable else "")

    def _words(self) -> str:
        match self.kind:
            case "choice":
                return (
                    "one of "
                    + ", ".join(self.choices)
                    + (", or a name of your own" if self.is_open else "")
                )
            case "int":
                return "a whole number" + self._range()
            case "float":
                return "a number" + self._range()
            case "str":
                return "a text that is not empty" if self.limits.get("min_length") else "a text"
            case kind:
                return _WORDS[kind]

    def _range(self) -> str:
        low, high = self.limits.get("ge"), self.limits.get("le")
        if low is not None and high is not None:
            return f" from {low:.0f} to {high:.0f}"
        return "" if low is None else f" of at least {low:.0f}"


@cache
def all_keys() -> tuple[Key, ...]:
    """Returns every option, in the order of the settings."""
    return tuple(_walk(Settings, ()))


@cache
def keys_by_path() -> dict[tuple[str, ...], Key]:
    """Returns every option by its path of field names."""
    return {key.path: key for key in all_keys()}


@cache
def keys_with(mark: Mark) -> tuple[Key, ...]:
    """Returns the options that bear *mark*, themselves or by their group."""
    return tuple(key for key in all_keys() if mark in key.marks)


def key_of(settings: Settings, mark: Mark) -> tuple[Any, ...]:
    """Returns the values of *settings* at the options that bear *mark*, hashable."""
    read, objects = _reader_of(mark)
    values = list(read(settings))
    for place, key in objects:
        values[place] = key.make_hashable(values[place])
    return tuple(values)


@cache
def _reader_of(
    mark: Mark,
) -> tuple[Callable[[Settings], tuple[Any, ...]], tuple[tuple[int, Key], ...]]:
    """What reads all options that bear *mark* at once, and the places among them of those that hold objects.

    Several options bear each mark, so that a tuple is read.
    """
    keys = keys_with(mark)
    objects = tuple((place, key) for place, key in enumerate(keys) if key.kind in _OBJECTS)
    return attrgetter(*(".".join(key.path) for key in keys)), objects


def _walk(cls: Any, above: tuple[str, ...], marks: frozenset[Mark] = frozenset()) -> Iterator[Key]:
    for field in fields(cls):
        path, own_marks = (*above, field.name), marks | field.metadata[MARKS]
        if is_dataclass(field.type):
            yield from _walk(field.type, path, own_marks)
        else:
            yield _make_key(field, path, own_marks)


def _make_key(field: Field[Any], path: tuple[str, ...], marks: frozenset[Mark]) -> Key:
    meta = dict(field.metadata[META])
    kind, nullable, choices = _kind(field.type)
    return Key(
        path=path,
        kind=kind,
        nullable=nullable,
        choices=choices,
        default=default_of(field),
        description=meta.pop("description"),
        limits=meta,
        marks=marks,
        is_open=get_origin(field.type) is Annotated,
    )


def _kind(hint: Any) -> tuple[str, bool, tuple[str, ...]]:
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (each for each in get_args(hint) if each is not types.NoneType)
        return _kind(inner)[0], True, _kind(inner)[2]
    if get_origin(hint) is Literal:
        return "choice", False, get_args(hint)
    if get_origin(hint) is Annotated:
        return "choice", False, hint.__metadata__[0]
    if get_origin(hint) is Mapping:
        return ("objects" if get_args(hint)[1] is Any else "object"), False, ()
    return {tuple: "list"}.get(get_origin(hint), getattr(hint, "__name__", "")), False, ()


def _freeze(value: Any) -> Any:
    """*value* with its mappings as tuples, sorted by their keys, which are all different."""
    return (
        tuple(sorted((name, _freeze(it)) for name, it in value.items()))
        if isinstance(value, Mapping)
        else value
    )


def build_settings(cls: Any, values: Mapping[str, Any]) -> Any:
    """Returns the settings object of class *cls* for nested dicts by field names, in which every field must be."""
    parts = {}
    for field in fields(cls):
        value = values[field.name]
        parts[field.name] = build_settings(field.type, value) if is_dataclass(field.type) else value
    return cls(**parts)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns *below* with *above* on top; where both hold a mapping, the two are merged in turn."""
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        both[name] = (
            merge(under, value)
            if isinstance(value, Mapping) and isinstance(under, Mapping)
            else value
        )
    return both


def get_value(values: Mapping[str, Any], key: Key) -> Any:
    """Returns the value of *key* in nested dicts, or `ABSENT`."""
    found: Any = values
    for part in key.path:
        found = found.get(part, ABSENT)
        if found is ABSENT:
            break
    return found


def to_json(value: Any) -> Any:
    """Returns a setting's value as JSON has it."""
    if isinstance(value, Mapping):
        return {name: to_json(it) for name, it in value.items()}
    return list(value) if isinstance(value, tuple) else value
