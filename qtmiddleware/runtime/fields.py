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


def replace_value_at_path(container: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of *container* with *value* at the end of *path*."""
    if not path:
        return value
    new = {path[0]: replace_value_at_path(read_field(container, path[0]), path[1:], value)}
    if path == BUNDLE and new != {path[0]: read_field(container, path[0])}:
        # The bundle's vectors belong to its former text. Without them, they are computed again.
        new |= dict.fromkeys(
            name for name in _BUNDLED_VECTORS if read_field(container, name) is not None
        )
    if isinstance(container, Mapping):
        return {**container, **new}
    if isinstance(container, tuple):
        return container._replace(**new)  # type: ignore[attr-defined]  # a named one
    if (change := getattr(container, "model_copy", None)) is not None and hasattr(
        container, "model_fields_set"
    ):
        # `model_copy` records that the field was set, so that pydantic also writes it with
        # `exclude_unset`.
        return change(update=new)
    duplicate = copy.copy(container)
    for name, field in new.items():
        try:
            setattr(duplicate, name, field)
        except (AttributeError, TypeError, ValueError):  # frozen
            object.__setattr__(duplicate, name, field)
    return duplicate


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
