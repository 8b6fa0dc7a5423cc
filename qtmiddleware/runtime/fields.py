"""Reading what somebody else's object or mapping holds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any


def read_field(holder: Any, name: str) -> Any:
    """Return the value *name* of a mapping or an object, ``None`` if it has none. Text has no fields."""
    if isinstance(holder, Mapping):
        return holder.get(name)
    return None if isinstance(holder, str | bytes) else getattr(holder, name, None)


def read_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return what *fn* takes; raises `ValueError` or `TypeError` for builtins that do not tell."""
    try:
        return inspect.signature(fn).parameters
    except NameError:
        # From Python 3.14 on annotations run when they are read, and may name what only type
        # checkers import.
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            return inspect.signature(fn, annotation_format=Format.STRING).parameters
        raise


def read_annotations(kind: type) -> Mapping[str, Any]:
    """Return the annotations of a class, as texts if they name what only type checkers import."""
    try:
        return getattr(kind, "__annotations__", {})
    except NameError:
        if sys.version_info >= (3, 14):
            from annotationlib import Format, get_annotations

            return get_annotations(kind, format=Format.STRING)
        raise
