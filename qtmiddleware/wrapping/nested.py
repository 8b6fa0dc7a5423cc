"""Read a value that is nested in an argument, or replace the value in a copy of the argument."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from qtmiddleware.runtime.fields import read_field

# LlamaIndex's QueryBundle, which may also hold the vectors of its text.
BUNDLE: Final = ("query_str",)
_BUNDLED_VECTORS: Final = ("embedding", "custom_embedding_strs")


def read_value_at_path(container: Any, path: Sequence[str]) -> Any:
    """Return the value at the end of *path* inside *container*.

    Returns ``None`` if there is no such value, or if reading the value raises an exception.
    """
    with suppress(Exception):
        return functools.reduce(read_field, path, container)
    return None


def replace_value_at_path(container: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of *container* with *value* at the end of *path*.

    The objects along the path are copied too, so that *container* does not change.
    """
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
