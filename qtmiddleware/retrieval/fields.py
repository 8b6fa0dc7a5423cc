"""Read and replace fields of objects that users and other packages make, and read parameters."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any, Final

# LlamaIndex's QueryBundle, which may also hold the vectors of its text.
BUNDLE: Final = ("query_str",)
_BUNDLED_VECTORS: Final = ("embedding", "custom_embedding_strs")


def read_field(holder: Any, field_name: str) -> Any:
    """Return the value of the key or attribute *field_name*; ``None`` if there is none."""
    if isinstance(holder, Mapping):
        return holder.get(field_name)
    return None if isinstance(holder, str | bytes) else getattr(holder, field_name, None)


def read_value_at_path(container: Any, path: Sequence[str]) -> Any:
    """Return the value at the end of *path*; ``None`` if it cannot be read."""
    with suppress(Exception):
        return reduce(read_field, path, container)
    return None


def replace_value_at_path(
    container: Any,
    path: Sequence[str],
    value: Any,
) -> Any:
    """Return a copy of *container* with *value* at the end of *path*."""
    if not path:
        return value
    new = {path[0]: replace_value_at_path(read_field(container, path[0]), path[1:], value)}
    if path == BUNDLE and new != {path[0]: read_field(container, path[0])}:
        # The bundle's vectors belong to its former text. Without them, they are computed again.
        new |= dict.fromkeys(
            name for name in _BUNDLED_VECTORS if read_field(container, name) is not None
        )
    try:
        return copy_with(container, new)
    except TypeError:
        # Code of the class may write to a deep copy, which shares no data.
        copied = copy.deepcopy(container)
        if copied is container:
            raise
        for name, field in new.items():
            setattr(copied, name, field)
        return copied


def copy_with(
    holder: Any,
    new: Mapping[str, Any],
) -> Any:
    """Return a copy of *holder*, an object of any kind, with other values of the fields in *new*.

    Raises an exception if *holder* cannot be copied.
    """
    class_: Any = type(holder)
    if class_ is dict or (isinstance(holder, Mapping) and not isinstance(holder, dict)):
        return {**holder, **new}
    if isinstance(holder, tuple):
        return holder._replace(**new)  # type: ignore[attr-defined]  # a named one
    if hasattr(class_, "__struct_fields__"):
        fields = {name: getattr(holder, name) for name in class_.__struct_fields__}
        return class_(**{**fields, **new})
    if hasattr(class_, "model_fields") and hasattr(class_, "model_copy"):
        # It records that the fields were set, so that `exclude_unset` keeps them.
        return holder.model_copy(update=new)
    return _copy_object(holder, new)


def _copy_object(holder: Any, new: Mapping[str, Any]) -> Any:
    attributes = getattr(holder, "__dict__", {})
    if isinstance(data := attributes.get("_data_store"), dict):
        # The copy module cannot copy the models of Pinecone's SDK before version 9.
        copied = object.__new__(type(holder))
        vars(copied).update(attributes, _data_store={**data, **new})
        return copied
    copied = copy.copy(holder)
    if copied is holder or (attributes and vars(copied) is attributes):
        raise TypeError(f"{type(holder).__name__} cannot be copied")
    if isinstance(copied, dict):
        copied.update(new)
        return copied
    for name, value in new.items():
        descriptor = inspect.getattr_static(type(holder), name, None)
        if hasattr(type(descriptor), "__set__") and not inspect.ismemberdescriptor(descriptor):
            # Code of the class, such as an ORM's, may write to data that both copies share.
            raise TypeError(f"{type(holder).__name__}.{name} cannot be replaced")
        # Frozen classes raise an error in their own __setattr__.
        object.__setattr__(copied, name, value)
    return copied


def read_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters by name; raise `ValueError` or `TypeError` if they are unknown."""
    try:
        return inspect.signature(function).parameters
    except NameError:
        # From Python 3.14 on, annotations are evaluated when they are read, and may use names that
        # only type checkers import.
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.STRING).parameters
        raise
