"""List all keys of the config, and read, merge and convert nested dicts of settings.

The keys are derived from the settings classes.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from qtmiddleware.config.options import MARKS, META, NAMES, Mark, get_default
from qtmiddleware.config.settings import Settings

ENVIRONMENT_PREFIX: Final = "QTM_"

ABSENT: Final = object()
"""The object that `get_value` returns for a key that is not set."""

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
"""For each group that accepts a single value: the option that this value sets.

For example, ``"fusion": "max"`` sets ``fusion.method``, and ``"cache": false`` sets
``cache.enabled``.
"""


_OBJECTS: Final = ("numbers", "object", "objects")
_OBJECT_KINDS: Final = {float: "numbers", str: "object", Any: "objects"}
_WORDS: Final = {
    "bool": "true or false",
    "list": "a list of texts",
    "object": "an object of texts",
    "objects": "an object of objects, each with prompt and fields",
}


def to_camel_case(name: str) -> str:
    """Convert a snake_case name to camelCase, such as ``rrf_k`` to ``rrfK``."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def format_dotted_key(path: tuple[str, ...]) -> str:
    """Return the dotted key for a path of field names, such as ``fusion.rrfK``."""
    return ".".join(map(to_camel_case, path))


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Key:
    """One option of the config.

    Attributes:
        path: the field names that lead to the option, such as ``("fusion", "rrf_k")``.
        kind: the type of the value: ``bool``, ``int``, ``float``, ``str``, ``choice``, ``list`` (of
            strings), ``object`` (of strings), ``numbers`` (an object of numbers) or ``objects`` (an
            object of objects).
        is_nullable: whether the option may be null.
        choices: the allowed values of a ``choice``; empty for other types.
        default: the default value.
        description: the meaning of the option.
        limits: the limits, by pydantic's names such as ``ge``. For a mapping, the limits of each
            of its values.
        names: the allowed names of a mapping, in snake_case; empty if all names are allowed.
        marks: the `Mark` words of the option. They say what the option changes.
        is_open: whether a ``choice`` also accepts names that users define.
    """

    path: tuple[str, ...]
    kind: str
    is_nullable: bool
    choices: tuple[str, ...]
    default: Any
    description: str
    limits: Mapping[str, Any]
    names: tuple[str, ...]
    marks: frozenset[Mark]
    is_open: bool = False

    @property
    def name(self) -> str:
        """The dotted camelCase key, such as ``fusion.rrfK``."""
        return format_dotted_key(self.path)

    def read_value(self, settings: Settings) -> Any:
        """Return the value of this option in *settings*, in a hashable form.

        A mapping becomes a tuple of its items, sorted by key.
        """
        return self.make_hashable(attrgetter(".".join(self.path))(settings))

    def make_hashable(self, value: Any) -> Any:
        """Return *value*, a value of this option, in a hashable form.

        A mapping becomes a tuple of its items, sorted by key.
        """
        return _freeze_mappings(value) if self.kind in _OBJECTS and value is not None else value

    @property
    def environment_variable(self) -> str:
        """The name of the environment variable that sets this option."""
        return ENVIRONMENT_PREFIX + "_".join(self.path).upper()

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return self._describe_kind() + (", or null" if self.is_nullable else "")

    @property
    def allowed_item(self) -> str:
        """The allowed values inside a list or mapping, in words."""
        return "a number" + self._describe_range() if self.kind == "numbers" else "a text"

    def convert_to_json(self, value: Any) -> Any:
        """Return *value*, a value of this option, ready for JSON.

        Mappings become dicts, and tuples become lists. Known names are in camelCase.
        """
        if self.names:
            return {to_camel_case(name): item for name, item in value.items()}
        return convert_to_json_value(value)

    def _describe_kind(self) -> str:
        match self.kind:
            case "choice":
                return (
                    "one of "
                    + ", ".join(self.choices)
                    + (", or a name of your own" if self.is_open else "")
                )
            case "numbers":
                return "an object of numbers" + self._describe_range()
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
def list_all_keys() -> tuple[Key, ...]:
    """Return all options, in the order of the fields of `Settings`."""
    return tuple(_list_keys(Settings, ()))


@cache
def index_keys_by_path() -> dict[tuple[str, ...], Key]:
    """Return all options by their paths, such as ``("fusion", "rrf_k")``."""
    return {key.path: key for key in list_all_keys()}


@cache
def find_marked_keys(mark: Mark) -> tuple[Key, ...]:
    """Return the options with *mark*, including all options of groups with *mark*."""
    return tuple(key for key in list_all_keys() if mark in key.marks)


def read_marked_values(settings: Settings, mark: Mark) -> tuple[Any, ...]:
    """Return the values of all options with *mark*, as a hashable tuple."""
    read, objects = _build_value_reader(mark)
    values = list(read(settings))
    for position, key in objects:
        values[position] = key.make_hashable(values[position])
    return tuple(values)


@cache
def _build_value_reader(
    mark: Mark,
) -> tuple[Callable[[Settings], tuple[Any, ...]], tuple[tuple[int, Key], ...]]:
    """Build a function that reads the values of all options with *mark*.

    Returns:
        The function. It takes the settings and returns a tuple of values.
        The positions and keys of the values that are mappings, which are not hashable.
    """
    # Every question reads these values for its cache key, so they are read by one `attrgetter`.
    keys = find_marked_keys(mark)
    objects = tuple((position, key) for position, key in enumerate(keys) if key.kind in _OBJECTS)
    return attrgetter(*(".".join(key.path) for key in keys)), objects


def _list_keys(
    settings_class: Any, group_path: tuple[str, ...], marks: frozenset[Mark] = frozenset()
) -> Iterator[Key]:
    """Yield the keys of a group of settings and of its subgroups.

    Args:
        settings_class: The class of the group.
        group_path: The field names that lead to the group; empty for `Settings`.
        marks: The marks of the group. All of its keys have these marks too.
    """
    for field in fields(settings_class):
        path, own_marks = (*group_path, field.name), marks | field.metadata[MARKS]
        if is_dataclass(field.type):
            yield from _list_keys(field.type, path, own_marks)
        else:
            yield _make_key(field, path, own_marks)


def _make_key(field: Field[Any], path: tuple[str, ...], marks: frozenset[Mark]) -> Key:
    """Return the `Key` for a settings field."""
    # A copy, because `pop` below changes the dict.
    meta = dict(field.metadata[META])
    kind, is_nullable, choices = _parse_type_hint(field.type)
    return Key(
        path=path,
        kind=kind,
        is_nullable=is_nullable,
        choices=choices,
        default=get_default(field),
        description=meta.pop("description"),
        limits=meta,
        names=field.metadata[NAMES],
        marks=marks,
        is_open=get_origin(field.type) is Annotated,
    )


def _parse_type_hint(type_hint: Any) -> tuple[str, bool, tuple[str, ...]]:
    """Return the ``kind``, ``is_nullable`` and ``choices`` of a `Key` with this type hint."""
    if get_origin(type_hint) in (Union, types.UnionType):
        (inner,) = (member for member in get_args(type_hint) if member is not types.NoneType)
        return _parse_type_hint(inner)[0], True, _parse_type_hint(inner)[2]
    if get_origin(type_hint) is Literal:
        return "choice", False, get_args(type_hint)
    if get_origin(type_hint) is Annotated:
        return "choice", False, type_hint.__metadata__[0]
    if get_origin(type_hint) is Mapping:
        return _OBJECT_KINDS[get_args(type_hint)[1]], False, ()
    return {tuple: "list"}.get(get_origin(type_hint), getattr(type_hint, "__name__", "")), False, ()


def _freeze_mappings(value: Any) -> Any:
    """Return *value* with each mapping replaced by a tuple of its items, sorted by key."""
    return (
        tuple(sorted((name, _freeze_mappings(item)) for name, item in value.items()))
        if isinstance(value, Mapping)
        else value
    )


def build_settings(settings_class: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of *settings_class* with *values*, which has a value for each field."""
    field_values = {}
    for field in fields(settings_class):
        value = values[field.name]
        field_values[field.name] = (
            build_settings(field.type, value) if is_dataclass(field.type) else value
        )
    return settings_class(**field_values)


def merge_settings(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return *base* with the values of *overrides*; both are nested mappings.

    If both have a value for a key, the result has the value of *overrides*. If both values are
    mappings, the result has the merged mapping.
    """
    merged = dict(base)
    for name, value in overrides.items():
        old_value = merged.get(name)
        merged[name] = (
            merge_settings(old_value, value)
            if isinstance(value, Mapping) and isinstance(old_value, Mapping)
            else value
        )
    return merged


def nest_values(values_by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts, as in a config file, for values by dotted key."""
    tree: dict[str, Any] = {}
    for name, value in values_by_name.items():
        *groups, option_name = name.split(".")
        holder = tree
        for group in groups:
            holder = holder.setdefault(group, {})
        holder[option_name] = value
    return tree


def get_value(values: Mapping[str, Any], key: Key) -> Any:
    """Return the value of *key* in the nested dicts *values*; `ABSENT` if it is not set."""
    value: Any = values
    for name in key.path:
        value = value.get(name, ABSENT)
        if value is ABSENT:
            break
    return value


def convert_to_json_value(value: Any) -> Any:
    """Return the value of a setting, ready for JSON.

    Mappings become dicts, and tuples become lists.
    """
    if isinstance(value, Mapping):
        return {name: convert_to_json_value(item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
