"""The keys of the config as a flat list, derived from the settings' dataclasses.

Also, settings as nested dicts.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from qtmiddleware.catalogue import prompt_names
from qtmiddleware.config.options import MARKS, META, Mark, get_default
from qtmiddleware.config.settings import Settings

ENVIRONMENT_PREFIX: Final = "QTM_"

ABSENT: Final = object()
"""The value that `get_value` returns for a key that is not set."""

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
"""Groups that may be written as a single value, and the key that the value sets.

For example, ``"fusion": "max"`` and ``"cache": false``.
"""

PROMPT_NAMES: Final = (*prompt_names(), "context", "answer", "sub_answer", "synthesis")
"""The prompts that may have instructions of your own.

``all`` is not among them: it is three of these, each with its own instructions.
"""


_OBJECTS: Final = ("object", "objects")
_WORDS: Final = {
    "bool": "true or false",
    "list": "a list of texts",
    "object": "an object of texts",
    "objects": "an object of objects, each with prompt and fields",
}


def camel(name: str) -> str:
    """Return a field's name as files write it: ``rrfK`` for ``rrf_k``."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def dotted(path: tuple[str, ...]) -> str:
    """Return a path of field names as users write it: ``fusion.rrfK``."""
    return ".".join(map(camel, path))


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Key:
    """One option of the config.

    Attributes:
        path: the field names that lead to it.
        kind: ``bool``, ``int``, ``float``, ``str``, ``choice``, ``list`` (of texts), ``object`` (of
            texts) or ``objects`` (an object of objects).
        nullable: whether it may be null.
        choices: the values of a ``choice``; empty for other kinds.
        default: its default.
        description: its meaning.
        limits: its limits, as pydantic names them.
        marks: its `Mark` words, which say what depends on it.
        is_open: whether it also takes names that users add.
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
        """The key as messages and tables show it."""
        return dotted(self.path)

    def read(self, settings: Settings) -> Any:
        """Return the key's value in *settings*, hashable."""
        return self.make_hashable(attrgetter(".".join(self.path))(settings))

    def make_hashable(self, value: Any) -> Any:
        """Return *value*, a value of this key, in a hashable form."""
        return _freeze_mappings(value) if self.kind in _OBJECTS and value is not None else value

    @property
    def environment(self) -> str:
        """The environment variable that sets the key."""
        return ENVIRONMENT_PREFIX + "_".join(self.path).upper()

    @property
    def allowed(self) -> str:
        """What may be set, in plain words."""
        return self._describe_kind() + (", or null" if self.nullable else "")

    def _describe_kind(self) -> str:
        match self.kind:
            case "choice":
                return (
                    "one of "
                    + ", ".join(self.choices)
                    + (", or a name of your own" if self.is_open else "")
                )
            case "int":
                return "a whole number" + self._describe_range()
            case "float":
                return "a number" + self._describe_range()
            case "str":
                return "a text that is not empty" if self.limits.get("min_length") else "a text"
            case kind:
                return _WORDS[kind]

    def _describe_range(self) -> str:
        low, high = self.limits.get("ge"), self.limits.get("le")
        if low is not None and high is not None:
            return f" from {low:.0f} to {high:.0f}"
        return "" if low is None else f" of at least {low:.0f}"


@cache
def all_keys() -> tuple[Key, ...]:
    """Return every option, in the order of the settings."""
    return tuple(_list_keys(Settings, ()))


@cache
def keys_by_path() -> dict[tuple[str, ...], Key]:
    """Return every option by its path of field names."""
    return {key.path: key for key in all_keys()}


@cache
def keys_with(mark: Mark) -> tuple[Key, ...]:
    """Return the options with this *mark*, their own or their group's."""
    return tuple(key for key in all_keys() if mark in key.marks)


def key_of(settings: Settings, mark: Mark) -> tuple[Any, ...]:
    """Return the values of *settings* at the options with this *mark*, hashable."""
    read, objects = _build_reader(mark)
    values = list(read(settings))
    for position, key in objects:
        values[position] = key.make_hashable(values[position])
    return tuple(values)


@cache
def _build_reader(
    mark: Mark,
) -> tuple[Callable[[Settings], tuple[Any, ...]], tuple[tuple[int, Key], ...]]:
    """Return a function that reads all options with this *mark* at once, as a tuple.

    Also return the positions of those options that hold objects, which have to be made hashable.
    Each mark belongs to several options, so `attrgetter` returns a tuple.
    """
    keys = keys_with(mark)
    objects = tuple((position, key) for position, key in enumerate(keys) if key.kind in _OBJECTS)
    return attrgetter(*(".".join(key.path) for key in keys)), objects


def _list_keys(
    cls: Any, above: tuple[str, ...], marks: frozenset[Mark] = frozenset()
) -> Iterator[Key]:
    """Yield the keys of a group of settings, and of the groups in it."""
    for field in fields(cls):
        path, own_marks = (*above, field.name), marks | field.metadata[MARKS]
        if is_dataclass(field.type):
            yield from _list_keys(field.type, path, own_marks)
        else:
            yield _make_key(field, path, own_marks)


def _make_key(field: Field[Any], path: tuple[str, ...], marks: frozenset[Mark]) -> Key:
    """Return the key of a settings field."""
    meta = dict(field.metadata[META])
    kind, nullable, choices = _read_kind(field.type)
    return Key(
        path=path,
        kind=kind,
        nullable=nullable,
        choices=choices,
        default=get_default(field),
        description=meta.pop("description"),
        limits=meta,
        marks=marks,
        is_open=get_origin(field.type) is Annotated,
    )


def _read_kind(hint: Any) -> tuple[str, bool, tuple[str, ...]]:
    """Return the kind of a type hint, whether it allows null, and its choices."""
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (member for member in get_args(hint) if member is not types.NoneType)
        return _read_kind(inner)[0], True, _read_kind(inner)[2]
    if get_origin(hint) is Literal:
        return "choice", False, get_args(hint)
    if get_origin(hint) is Annotated:
        return "choice", False, hint.__metadata__[0]
    if get_origin(hint) is Mapping:
        return ("objects" if get_args(hint)[1] is Any else "object"), False, ()
    return {tuple: "list"}.get(get_origin(hint), getattr(hint, "__name__", "")), False, ()


def _freeze_mappings(value: Any) -> Any:
    """Return *value* with mappings as tuples, sorted by their keys, which all differ."""
    return (
        tuple(sorted((name, _freeze_mappings(item)) for name, item in value.items()))
        if isinstance(value, Mapping)
        else value
    )


def build_settings(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return the settings object of class *cls* for nested dicts that hold every field."""
    field_values = {}
    for field in fields(cls):
        value = values[field.name]
        field_values[field.name] = (
            build_settings(field.type, value) if is_dataclass(field.type) else value
        )
    return cls(**field_values)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return *below* with *above* on top; mappings that both hold are merged in turn."""
    merged = dict(below)
    for name, value in above.items():
        old_value = merged.get(name)
        merged[name] = (
            merge(old_value, value)
            if isinstance(value, Mapping) and isinstance(old_value, Mapping)
            else value
        )
    return merged


def get_value(values: Mapping[str, Any], key: Key) -> Any:
    """Return the value of *key* in nested dicts, or `ABSENT`."""
    value: Any = values
    for name in key.path:
        value = value.get(name, ABSENT)
        if value is ABSENT:
            break
    return value


def to_json(value: Any) -> Any:
    """Return a setting's value in the form of JSON."""
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
