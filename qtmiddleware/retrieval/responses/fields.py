"""Read a field of any object, or copy the object with a new value in this field.

Objects may be mappings, lists, tuples, dataclasses, named tuples, pydantic models, msgspec structs,
database rows, OpenAPI models of older SDKs, and plain objects. The type of an object is recognised
by the object's attributes, never by its library. In a list or tuple, the name of a
field is its index.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Final, cast

from qtmiddleware.errors import ResponseShapeError

ABSENT: Final = object()
"""Returned for a missing field, because an existing field may be ``None``."""

ADVICE: Final = "pass read= (response -> list of items) and write= (response, items -> response)"


MAPPING: Final = "mapping"
PLAIN: Final = "plain"
NAMED: Final = "named"
ROW: Final = "row"
OBJECT: Final = "object"

# Classes with one of these attributes are not rows, although they may have keys(): models, structs,
# arrays and the classes of pandas.
_NO_ROWS: Final = (
    "__dataclass_fields__",
    "__struct_fields__",
    "model_fields",
    "attribute_map",
    "dtype",
    "iloc",
)


def _find_access_kind(class_: type) -> str:
    """Return one of these words, which say how to read the fields of objects of *class_*.

    ``mapping``  By key.
    ``plain``    By index: a list, or a tuple that is not a named tuple.
    ``named``    As attributes of a named tuple.
    ``row``      By column name, as in ``sqlite3.Row`` and SQLAlchemy's ``Row``. Rows of the same
                 class may have different columns.
    ``object``   As attributes.
    """
    if issubclass(class_, Mapping):
        return MAPPING
    if hasattr(class_, "_fields"):
        return (
            NAMED if issubclass(class_, tuple) else ROW if issubclass(class_, Sequence) else OBJECT
        )
    has_keys = callable(getattr(class_, "keys", None)) and hasattr(class_, "__getitem__")
    if has_keys and not any(hasattr(class_, name) for name in _NO_ROWS):
        return ROW
    return PLAIN if issubclass(class_, (tuple, list)) else OBJECT


# Cached, because it is called for every item of a response, and items have few classes.
find_kind: Final = cast("Callable[[type[Any]], str]", lru_cache(maxsize=1_024)(_find_access_kind))


class Names(tuple[str, ...]):  # noqa: SLOT001 - a tuple takes none
    """The alternative names of a field, such as ``id`` and ``_id``, in order of preference."""

    pick: Callable[[type, tuple[str, ...]], tuple[str, ...]]
    """Takes a class and the names of an object's own fields. Returns the names that exist."""
    pick_keys: Callable[[tuple[Any, ...]], tuple[str, ...]]
    """Takes the keys of a dict. Returns the names that are among them."""

    def __new__(cls, names: Iterable[str]) -> Names:
        """Create the tuple of *names*, with caches for the lookups in objects and dicts.

        The items of a list usually have the same fields, so most lookups are repeated.
        """
        self = super().__new__(cls, names)
        self.pick_keys = lru_cache(maxsize=1_024)(partial(_pick_names_in_keys, tuple(self)))
        self.pick = lru_cache(maxsize=1_024)(partial(_pick_declared_names, tuple(self)))
        return self


def pick_field_names(holder: Any, names: Names) -> Sequence[str]:
    """Return the *names* that *holder* declares as attributes or columns.

    *holder* must not be a mapping. Its attributes are not read, because OpenAPI models return
    ``None`` for any name, and documents return the user's fields.
    """
    return names.pick(type(holder), list_instance_names(holder))


def list_instance_names(holder: Any) -> tuple[str, ...]:
    """Return the names of *holder*'s instance attributes.

    If *holder* is a database row, the names of its columns come first.
    """
    names = getattr(holder, "__dict__", None) or ()
    return (*_list_columns(holder), *names) if find_kind(type(holder)) is ROW else tuple(names)


def _pick_names_in_keys(names: Iterable[str], keys: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the *names* that are among *keys*, in the order of *names*."""
    return tuple(name for name in names if name in keys)


def _pick_declared_names(
    names: Iterable[str], class_: type, instance_names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the *names* that *class_* declares or that are among *instance_names*."""
    declared = getattr(class_, "attribute_map", None)
    if isinstance(declared, Mapping):
        return tuple(name for name in names if name in declared or name in instance_names)
    return tuple(name for name in names if name in instance_names or hasattr(class_, name))


def _list_columns(row: Any) -> tuple[str, ...]:
    """Return the column names of *row*, a database row, in order."""
    return tuple(row._fields if hasattr(type(row), "_fields") else row.keys())


def _get_column(row: Any, column_name: str) -> Any:
    """Return the value of the first column *column_name* of *row*, a database row."""
    return (
        row[row._fields.index(column_name)] if hasattr(type(row), "_fields") else row[column_name]
    )


def has_field(holder: Any, field_name: str) -> bool:
    """Return whether *holder*, which is not a mapping, has an attribute or column *field_name*."""
    class_: type = type(holder)
    return _has_declared_name(field_name, class_, list_instance_names(holder))


@lru_cache(maxsize=1_024)
def _has_declared_name(name: str, class_: type, instance_names: tuple[str, ...]) -> bool:
    """Return whether *name* is an attribute of *class_* or among *instance_names*."""
    return bool(_pick_declared_names((name,), class_, instance_names))


Path = Sequence[str | int]
"""The names of nested fields, the outermost first."""


def get_field(holder: Any, field_name: str | int) -> Any:
    """Return the value of *holder*'s field *field_name*; `ABSENT` if there is no such field."""
    kind = MAPPING if type(holder) is dict else find_kind(type(holder))
    if kind is MAPPING:
        return holder.get(field_name, ABSENT)
    if isinstance(field_name, int):
        return holder[field_name]
    if kind is ROW and field_name in _list_columns(holder):
        return _get_column(holder, field_name)
    return getattr(holder, field_name, ABSENT) if has_field(holder, field_name) else ABSENT


def get_nested_value(holder: Any, path: Path) -> Any:
    """Follow *path* from *holder* and return the last value; `ABSENT` if a field is missing."""
    for name in path:
        if (holder := get_field(holder, name)) is ABSENT:
            return ABSENT
    return holder


def list_fields(holder: Any) -> Mapping[str, Any]:
    """Return the fields of *holder*, which is not a mapping, by name."""
    class_ = type(holder)
    if find_kind(class_) is ROW:
        return {name: _get_column(holder, name) for name in _list_columns(holder)}
    names = getattr(class_, "__struct_fields__", None) or getattr(class_, "_fields", None)
    names = (
        names or getattr(class_, "__dataclass_fields__", None) or getattr(holder, "__dict__", None)
    )
    if names is None:
        return holder.to_dict() if callable(getattr(class_, "to_dict", None)) else {}
    return {name: getattr(holder, name, None) for name in names}


def is_list(value: Any) -> bool:
    """Return whether *value* is a sequence of items. Text and bytes do not count.

    A numpy array must have one dimension and contain objects or strings.
    """
    return (
        isinstance(value, (list, tuple))
        or (
            isinstance(value, Sequence)
            and not isinstance(value, (str, bytes, bytearray, memoryview))
        )
        or (is_array(value) and value.ndim == 1 and value.dtype.kind in "OUT")
    )


def is_array(value: Any) -> bool:
    """Return whether *value* is a numpy array with at least one dimension.

    Returns false for subclasses of ``ndarray``, because they may contain more data than the values.
    """
    class_ = type(value)
    return (
        hasattr(class_, "__array_interface__") and class_.__name__ == "ndarray" and value.ndim > 0
    )


def is_number(value: Any) -> bool:
    """Return whether *value* is a number, of Python or of any library. Booleans do not count."""
    return type(value) is float or (hasattr(value, "__float__") and not isinstance(value, bool))


def convert_to_float(value: Any) -> float | None:
    """Return *value* as a finite float; ``None`` if it is not a finite number."""
    if type(value) is float:
        return value if isfinite(value) else None
    if isinstance(value, (bool, str, bytes)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def build_similar_container(container: Any, values: Sequence[Any]) -> Any:
    """Return *values* in a container like *container*: a tuple, a numpy array, or else a list.

    An array has the same dtype as *container* unless the values do not fit.
    """
    if type(container) is tuple:
        return tuple(values)
    if not is_array(container):
        return list(values)
    # The container is an array, so numpy is already loaded.
    import numpy as np

    dtype_kind, shape = container.dtype.kind, (len(values), *container.shape[1:])
    if dtype_kind == "O":
        array = np.empty(len(values), dtype=object)
        for place, value in enumerate(values):
            array[place] = value
        return array
    # New texts may be longer than the old ones, and new numbers may not be whole.
    free = dtype_kind == "U" or (
        dtype_kind in "iu" and any(isinstance(value, float) for value in values)
    )
    return np.array(
        values, dtype=(str if dtype_kind == "U" else None) if free else container.dtype
    ).reshape(shape)


def replace_nested_value(holder: Any, path: Path, value: Any) -> Any:
    """Return a copy of *holder* with *value* at *path*. An empty path returns *value*.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    if not path:
        return value
    return _copy_with_field(
        holder, path[0], replace_nested_value(get_field(holder, path[0]), path[1:], value)
    )


def replace_nested_items(holder: Any, path: Path, items: Sequence[Any]) -> Any:
    """Return a copy of *holder* with *items* in the list at *path*.

    If there is a tuple or numpy array at *path*, its type is kept.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    return replace_nested_value(
        holder, path, build_similar_container(get_nested_value(holder, path), items)
    )


def remove_field(holder: Any, field_name: str) -> Any:
    """Return a copy of *holder* without the field *field_name*.

    *holder* is a mapping or a view of a dict. It is returned unchanged if it lacks the field.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    fields = holder if isinstance(holder, Mapping) else list_fields(holder)
    if field_name not in fields:
        return holder
    remaining = {key: value for key, value in fields.items() if key != field_name}
    class_: Any = type(holder)
    try:
        return remaining if class_ is dict else class_(remaining)
    except Exception as error:
        raise build_shape_error(
            holder, f"{field_name!r} cannot be left out of a copy of type"
        ) from error


def build_shape_error(value: Any, problem: str) -> ResponseShapeError:
    """Return the error for *value*, which cannot be read or copied because of *problem*.

    The error names the type of *value* and never quotes its content.
    """
    class_ = type(value)
    shape = (
        class_.__qualname__
        if class_.__module__ == "builtins"
        else f"{class_.__module__}.{class_.__qualname__}"
    )
    return ResponseShapeError(f"{problem} {shape}; {ADVICE}", shape=shape)


def _copy_with_field(holder: Any, field_name: str | int, value: Any) -> Any:
    """Return a shallow copy of *holder* with *value* in the field *field_name*.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    try:
        if isinstance(holder, Mapping):
            return _copy_mapping(holder, field_name, value)
        return (
            _copy_sequence(holder, field_name, value)
            if isinstance(field_name, int)
            else _copy_object(holder, field_name, value)
        )
    except ResponseShapeError:
        raise
    except Exception as error:
        raise build_shape_error(
            holder, f"{field_name!r} cannot be changed in a copy of type"
        ) from error


def _copy_sequence(holder: Sequence[Any], index: int, value: Any) -> Any:
    """Return a copy of *holder*, a list or tuple, with *value* at *index*."""
    class_: Any = type(holder)
    return getattr(class_, "_make", class_)((*holder[:index], value, *holder[index + 1 :]))


def _copy_mapping(holder: Mapping[Any, Any], key: str | int, value: Any) -> Mapping[Any, Any]:
    """Return a copy of *holder*, a mapping, with *value* under the key *key*.

    The copy is a dict if *holder* is read-only.
    """
    if type(holder) is dict or not isinstance(holder, MutableMapping):
        return {**holder, key: value}
    copied = _make_shallow_copy(holder)
    copied[key] = value
    return copied  # type: ignore[no-any-return]


def _copy_object(holder: Any, attribute_name: str, value: Any) -> Any:
    """Return a copy of *holder*, an object, with *value* in the attribute *attribute_name*."""
    class_ = type(holder)
    if hasattr(class_, "__struct_fields__"):
        return class_(
            **{
                field: value if field == attribute_name else getattr(holder, field)
                for field in class_.__struct_fields__
            }
        )
    if hasattr(class_, "model_copy"):
        return holder.model_copy(update={attribute_name: value})
    if isinstance(holder, tuple):
        return holder._replace(**{attribute_name: value})  # type: ignore[attr-defined]
    store = getattr(holder, "__dict__", {}).get("_data_store")
    if isinstance(store, dict):
        # The copy module cannot copy OpenAPI models, and their constructors would validate every
        # item again.
        copied = object.__new__(class_)
        copied.__dict__.update(holder.__dict__, _data_store={**store, attribute_name: value})
        return copied
    if isinstance(getattr(class_, attribute_name, None), property) and attribute_name in (
        fields := list_fields(holder)
    ):
        # A view of a dict, such as Pinecone's Document.
        return class_({**fields, attribute_name: value})
    copied = _make_shallow_copy(holder)
    # Frozen classes raise an error in their own __setattr__, so the one of `object` is called.
    object.__setattr__(copied, attribute_name, value)
    return copied


def _make_shallow_copy(holder: Any) -> Any:
    """Return a shallow copy of *holder*.

    Raises:
        ResponseShapeError: ``copy.copy()`` returns *holder* itself.
    """
    copied = copy.copy(holder)
    if copied is holder:
        raise build_shape_error(holder, "copy.copy() does not make a new object of type")
    return copied
