"""Tell which keys there are and what they allow, as the fields of `Settings` define them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from qtmiddleware.config.settings import Limit, Names, Settings, SettingsGroup, to_camel_case

ENVIRONMENT_PREFIX: Final = "QTM_"
_WORDS: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple[str, ...]: "a list of texts",
}


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Key:
    """One option: its path of field names, and its annotation."""

    path: tuple[str, ...]
    hint: Any

    @property
    def name(self) -> str:
        """The dotted camelCase key, such as ``fusion.rrfK``."""
        return ".".join(map(to_camel_case, self.path))

    @property
    def environment_variable(self) -> str:
        """The name of the environment variable that sets this option."""
        return ENVIRONMENT_PREFIX + "_".join(self.path).upper()

    def read_value(self, settings: Settings) -> Any:
        """Return the value of this option in *settings*."""
        return attrgetter(".".join(self.path))(settings)


@cache
def list_all_keys() -> tuple[Key, ...]:
    """Return all options, in the order of the fields of `Settings`."""
    return tuple(_list_keys(Settings(), ()))


def _list_keys(group: SettingsGroup, path: tuple[str, ...]) -> Iterator[Key]:
    for name, hint in read_hints(type(group)).items():
        value = getattr(group, name)
        if isinstance(value, SettingsGroup):
            yield from _list_keys(value, (*path, name))
        else:
            yield Key(path=(*path, name), hint=hint)


def read_hints(group: Any) -> dict[str, Any]:
    """Return the annotations of the fields of *group*, by field name."""
    return {field.name: field.type for field in fields(group)}


def unwrap(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the type in *hint*, the notes beside the type, and whether ``None`` is allowed."""
    if get_origin(hint) is Annotated:
        inner, notes, is_nullable = unwrap(hint.__origin__)
        return inner, (*notes, *hint.__metadata__), is_nullable
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        (member,) = (member for member in get_args(hint) if member is not NoneType)
        return *unwrap(member)[:2], True
    return hint, (), False


def find_part(hint: Any, name: object) -> Any:
    """Return the annotation of *name*, an option of a group or an item, or ``None``."""
    type_ = unwrap(hint)[0]
    names = list_names(hint)
    if names and name not in names:
        return None
    if is_dataclass(type_):
        return read_hints(type_)[str(name)]
    if get_origin(type_) is Mapping:
        return get_args(type_)[1]
    return get_args(type_)[0] if get_origin(type_) is tuple else None


def list_names(hint: Any) -> tuple[str, ...]:
    """Return the names that *hint* allows: a group's options, or an object's only keys."""
    type_ = unwrap(hint)[0]
    if is_dataclass(type_):
        return tuple(read_hints(type_))
    return list_choices(get_args(type_)[0]) if get_origin(type_) is Mapping else ()


def list_choices(hint: Any) -> tuple[str, ...]:
    """Return the values of the choice *hint*, without names that users define."""
    type_, notes, _ = unwrap(hint)
    if get_origin(type_) is Literal:
        return get_args(type_)
    return next((note.names for note in notes if isinstance(note, Names)), ())


def find_name(hint: Any, written_name: Any) -> Any:
    """Return the field name that *written_name* means in *hint*: ``rrf_k`` for ``rrfK``."""
    names = (name for name in list_names(hint) if written_name in (name, to_camel_case(name)))
    return next(names, written_name)


def describe_allowed_values(hint: Any) -> str:
    """Return the values that *hint* allows, in words."""
    type_, notes, is_nullable = unwrap(hint)
    names = ", ".join(map(to_camel_case, list_names(hint))) or "names"
    if choices := list_choices(hint):
        words = f"one of {', '.join(choices)}"
        if any(getattr(note, "is_open", False) for note in notes):
            words += ", or a name of your own"
    elif get_origin(type_) is Mapping:
        words = f"an object of {names}, each {describe_allowed_values(get_args(type_)[1])}"
    else:
        words = _WORDS.get(type_, f"an object of {names}")
        words += "".join(note.words for note in notes if isinstance(note, Limit))
    return words + (", or null" if is_nullable else "")


def convert_to_json(value: Any, hint: Any = None) -> Any:
    """Return *value*, which *hint* annotates, ready for JSON. Known names are in camelCase."""
    if isinstance(value, SettingsGroup):
        value = vars(value)
    if isinstance(value, Mapping):
        names = {name: to_camel_case(name) for name in list_names(hint)}
        return {
            names.get(name, name): convert_to_json(item, find_part(hint, name))
            for name, item in value.items()
        }
    return list(value) if isinstance(value, tuple) else value
