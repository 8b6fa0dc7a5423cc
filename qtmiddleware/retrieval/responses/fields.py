"""One field of anything: read it, or make a copy in which only that field differs.

Mappings, lists, tuples, dataclasses, named tuples, pydantic models, msgspec structs, rows of
databases, the OpenAPI models of older SDKs and plain objects, told apart by what they have and
never by where they come from. A field of a list or tuple is named by its position.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Final, cast

from qtmiddleware.errors import ResponseShapeError

ABSENT: Final = object()
"""What stands for a field that is not there, since ``None`` may be a value."""

ADVICE: Final = "pass read= (response -> list of items) and write= (response, items -> response)"


MAPPING: Final = "mapping"
PLAIN: Final = "plain"
NAMED: Final = "named"
ROW: Final = "row"
OBJECT: Final = "object"

# These may have keys() too: models, structs, arrays and what pandas makes.
_NO_ROWS: Final = (
    "__dataclass_fields__",
    "__struct_fields__",
    "model_fields",
    "attribute_map",
    "dtype",
    "iloc",
)


def _find_kind(kind: type) -> str:
    """Returns how fields are read of objects of the class *kind*.

    ``mapping``  by key
    ``plain``    by place: a list, or a tuple whose places have no names
    ``named``    as attributes, of a named tuple
    ``row``      by the names of columns, which each row of a database says itself, as ``sqlite3.Row`` and SQLAlchemy's
                 ``Row`` do
    ``object``   as attributes
    """
    if issubclass(kind, Mapping):
        return MAPPING
    if hasattr(kind, "_fields"):
        return NAMED if issubclass(kind, tuple) else ROW if issubclass(kind, Sequence) else OBJECT
    has_keys = callable(getattr(kind, "keys", None)) and hasattr(kind, "__getitem__")
    if has_keys and not any(hasattr(kind, name) for name in _NO_ROWS):
        return ROW
    return PLAIN if issubclass(kind, (tuple, list)) else OBJECT


# It is called for every item of a response, and there are few classes of them.
find_kind: Final = cast("Callable[[type[Any]], str]", lru_cache(maxsize=1_024)(_find_kind))


class Names(tuple[str, ...]):  # noqa: SLOT001 - a tuple takes none
    """Names a field may have, those that count first in front."""

    pick: Callable[[type, tuple[str, ...]], tuple[str, ...]]
    """Returns those of the names that a class has, or its object's own fields."""
    pick_keys: Callable[[tuple[Any, ...]], tuple[str, ...]]
    """Returns those of the names that are among the keys of a dict."""

    def __new__(cls, names: Iterable[str]) -> Names:
        """Make a tuple of *names* that remembers which of them it found where: the items of a list are alike."""
        self = super().__new__(cls, names)
        self.pick_keys = lru_cache(maxsize=1_024)(partial(_pick_present, tuple(self)))
        self.pick = lru_cache(maxsize=1_024)(partial(_pick_declared, tuple(self)))
        return self


def pick_fields(holder: Any, names: Names) -> Sequence[str]:
    """Returns those of *names* that *holder*, which is no mapping, declares as attributes or columns, in their order.

    Never asks the object itself: OpenAPI models answer ``None`` to any name, and documents answer
    with the user's own fields.
    """
    return names.pick(type(holder), list_own(holder))


def list_own(holder: Any) -> tuple[str, ...]:
    """Returns the names that the class of *holder* does not tell."""
    own = getattr(holder, "__dict__", None) or ()
    return (*_list_columns(holder), *own) if find_kind(type(holder)) is ROW else tuple(own)


def _pick_present(names: Iterable[str], keys: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in keys)


def _pick_declared(names: Iterable[str], kind: type, own: tuple[str, ...]) -> tuple[str, ...]:
    declared = getattr(kind, "attribute_map", None)
    if isinstance(declared, Mapping):
        return tuple(name for name in names if name in declared or name in own)
    return tuple(name for name in names if name in own or hasattr(kind, name))


def _list_columns(row: Any) -> tuple[str, ...]:
    """The names of a row's columns, from left to right."""
    return tuple(row._fields if hasattr(type(row), "_fields") else row.keys())


def _get_column(row: Any, name: str) -> Any:
    """The value under *name*, in the first of the columns that have it."""
    return row[row._fields.index(name)] if hasattr(type(row), "_fields") else row[name]


def has_field(holder: Any, name: str) -> bool:
    """Whether *holder*, which is no mapping, declares an attribute or column *name*."""
    kind: type = type(holder)
    return _has_declared(name, kind, list_own(holder))


@lru_cache(maxsize=1_024)
def _has_declared(name: str, kind: type, own: tuple[str, ...]) -> bool:
    return bool(_pick_declared((name,), kind, own))


Path = Sequence[str | int]
"""The names of fields, each inside the one before."""


def get_field(holder: Any, name: str | int) -> Any:
    """Returns the field *name* of *holder*, `ABSENT` where it has none."""
    kind = MAPPING if type(holder) is dict else find_kind(type(holder))
    if kind is MAPPING:
        return holder.get(name, ABSENT)
    if isinstance(name, int):
        return holder[name]
    if kind is ROW and name in _list_columns(holder):
        return _get_column(holder, name)
    return getattr(holder, name, ABSENT) if has_field(holder, name) else ABSENT


def get_path(holder: Any, path: Path) -> Any:
    """Returns what lies at the end of *path*, `ABSENT` where the path breaks off."""
    for name in path:
        if (holder := get_field(holder, name)) is ABSENT:
            return ABSENT
    return holder


def list_fields(holder: Any) -> Mapping[str, Any]:
    """Returns all fields of an object, by name."""
    kind = type(holder)
    if find_kind(kind) is ROW:
        return {name: _get_column(holder, name) for name in _list_columns(holder)}
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    names = (
        names or getattr(kind, "__dataclass_fields__", None) or getattr(holder, "__dict__", None)
    )
    if names is None:
        return holder.to_dict() if callable(getattr(kind, "to_dict", None)) else {}
    return {name: getattr(holder, name, None) for name in names}


def is_list(value: Any) -> bool:
    """Whether *value* is a sequence of items and not a text; an array is one where it holds objects or texts."""
    return (
        isinstance(value, (list, tuple))
        or (
            isinstance(value, Sequence)
            and not isinstance(value, (str, bytes, bytearray, memoryview))
        )
        or (is_array(value) and value.ndim == 1 and value.dtype.kind in "OUT")
    )


def is_array(value: Any) -> bool:
    """Whether *value* is an array of numpy's kind, of one dimension or more; a class made of it may hold more."""
    kind = type(value)
    return hasattr(kind, "__array_interface__") and kind.__name__ == "ndarray" and value.ndim > 0


def is_number(value: Any) -> bool:
    """Whether *value* is a number of any library, not a truth value and not a text that reads like one."""
    return type(value) is float or (hasattr(value, "__float__") and not isinstance(value, bool))


def to_number(value: Any) -> float | None:
    """Returns *value* as a finite float, ``None`` where it is no such number."""
    if type(value) is float:
        return value if isfinite(value) else None
    if isinstance(value, (bool, str, bytes)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def build_like(container: Any, values: Sequence[Any]) -> Any:
    """Returns *values* in a tuple, an array or a list, as *container* is one; an array keeps its type if it can."""
    if type(container) is tuple:
        return tuple(values)
    if not is_array(container):
        return list(values)
    import numpy as np  # where an array came from, it is loaded

    kind, shape = container.dtype.kind, (len(values), *container.shape[1:])
    if kind == "O":
        array = np.empty(len(values), dtype=object)
        for place, value in enumerate(values):
            array[place] = value
        return array
    # Texts may be longer than the given ones, and numbers no longer whole.
    free = kind == "U" or (kind in "iu" and any(isinstance(value, float) for value in values))
    return np.array(
        values, dtype=(str if kind == "U" else None) if free else container.dtype
    ).reshape(shape)


def replace_path(holder: Any, path: Path, value: Any) -> Any:
    """Returns a copy of *holder* with *value* at the end of *path*; raises `ResponseShapeError` if none can be made."""
    if not path:
        return value
    return _copy_with(holder, path[0], replace_path(get_field(holder, path[0]), path[1:], value))


def replace_items(holder: Any, path: Path, items: Sequence[Any]) -> Any:
    """Returns a copy of *holder* with *items* at the end of *path*, in a container like the one there."""
    return replace_path(holder, path, build_like(get_path(holder, path), items))


def remove_field(holder: Any, name: str) -> Any:
    """Returns a copy of *holder*, a mapping or a view of a dict, without the field *name*; itself if it has none."""
    fields = holder if isinstance(holder, Mapping) else list_fields(holder)
    if name not in fields:
        return holder
    kept = {key: value for key, value in fields.items() if key != name}
    kind: Any = type(holder)
    try:
        return kept if kind is dict else kind(kept)
    except Exception as error:
        raise shape_error(holder, f"{name!r} cannot be left out of a copy of type") from error


def shape_error(value: Any, what: str) -> ResponseShapeError:
    """Returns the error for a *value* that cannot be read; names its type and never its content."""
    kind = type(value)
    shape = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return ResponseShapeError(f"{what} {shape}; {ADVICE}", shape=shape)


def _copy_with(holder: Any, name: str | int, value: Any) -> Any:
    """A shallow copy of *holder*, of its own type, whose field *name* is *value*."""
    try:
        if isinstance(holder, Mapping):
            return _copy_mapping(holder, name, value)
        return (
            _copy_sequence(holder, name, value)
            if isinstance(name, int)
            else _copy_object(holder, name, value)
        )
    except ResponseShapeError:
        raise
    except Exception as error:
        raise shape_error(holder, f"{name!r} cannot be changed in a copy of type") from error


def _copy_sequence(holder: Sequence[Any], place: int, value: Any) -> Any:
    kind: Any = type(holder)
    return getattr(kind, "_make", kind)((*holder[:place], value, *holder[place + 1 :]))


def _copy_mapping(holder: Mapping[Any, Any], name: str | int, value: Any) -> Mapping[Any, Any]:
    if type(holder) is dict or not isinstance(holder, MutableMapping):
        return {**holder, name: value}
    copied = _copy(holder)
    copied[name] = value
    return copied  # type: ignore[no-any-return]


def _copy_object(holder: Any, name: str, value: Any) -> Any:
    kind = type(holder)
    if hasattr(kind, "__struct_fields__"):
        return kind(
            **{
                field: value if field == name else getattr(holder, field)
                for field in kind.__struct_fields__
            }
        )
    if hasattr(kind, "model_copy"):
        return holder.model_copy(update={name: value})
    if isinstance(holder, tuple):
        return holder._replace(**{name: value})  # type: ignore[attr-defined]
    store = getattr(holder, "__dict__", {}).get("_data_store")
    if isinstance(store, dict):
        # OpenAPI models cannot be copied by the copy module, and their constructors check every
        # item's type again.
        copied = object.__new__(kind)
        copied.__dict__.update(holder.__dict__, _data_store={**store, name: value})
        return copied
    if isinstance(getattr(kind, name, None), property) and name in (fields := list_fields(holder)):
        return kind({**fields, name: value})  # a view of a dict, such as Pinecone's Document
    copied = _copy(holder)
    object.__setattr__(copied, name, value)  # past the __setattr__ of frozen classes
    return copied


def _copy(holder: Any) -> Any:
    copied = copy.copy(holder)
    if copied is holder:
        raise shape_error(holder, "copy.copy() does not make a new object of type")
    return copied
