"""What lies inside an argument: read, or put anew into a copy of it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from qtmiddleware.runtime.fields import read_field

# LlamaIndex's QueryBundle, which may hold the vectors of its text too.
BUNDLE: Final = ("query_str",)
_BUNDLED_VECTORS: Final = ("embedding", "custom_embedding_strs")


def get_inside(holder: Any, path: Sequence[str]) -> Any:
    """Return what lies at the end of *path*, ``None`` if there is nothing or it cannot be read."""
    with suppress(Exception):
        return functools.reduce(read_field, path, holder)
    return None


def put(holder: Any, path: Sequence[str], value: Any) -> Any:
    """Returns a copy of *holder* with *value* at the end of *path*; what lies on the way is copied too."""
    if not path:
        return value
    new = {path[0]: put(read_field(holder, path[0]), path[1:], value)}
    if path == BUNDLE and new != {path[0]: read_field(holder, path[0])}:
        # They are those of the text that was there.
        new |= dict.fromkeys(
            name for name in _BUNDLED_VECTORS if read_field(holder, name) is not None
        )
    if isinstance(holder, Mapping):
        return {**holder, **new}
    if isinstance(holder, tuple):
        return holder._replace(**new)  # type: ignore[attr-defined]  # a named one
    if (change := getattr(holder, "model_copy", None)) is not None and hasattr(
        holder, "model_fields_set"
    ):
        # Pydantic then knows that the field was set, and writes it where it writes such fields
        # alone.
        return change(update=new)
    twin = copy.copy(holder)
    for name, field in new.items():
        try:
            setattr(twin, name, field)
        except (AttributeError, TypeError, ValueError):  # frozen
            object.__setattr__(twin, name, field)
    return twin
