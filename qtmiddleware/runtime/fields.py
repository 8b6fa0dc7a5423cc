"""Read the fields, parameters and annotations of objects from other packages and users."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any


def read_field(holder: Any, name: str) -> Any:
    """Return the value of *name* in a mapping or an object; ``None`` if there is no such value.

    Text (`str` or `bytes`) has no fields.
    """
    if isinstance(holder, Mapping):
        return holder.get(name)
    return None if isinstance(holder, str | bytes) else getattr(holder, name, None)


def read_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of *fn*, by name.

    Raises `ValueError` or `TypeError` for a builtin whose parameters are unknown.
    """
    try:
        return inspect.signature(fn).parameters
    except NameError:
        # From Python 3.14 on, annotations are evaluated when they are read, and may use names that
        # only type checkers import.
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            return inspect.signature(fn, annotation_format=Format.STRING).parameters
        raise


def read_annotations(kind: type) -> Mapping[str, Any]:
    """Return the annotations of the class *kind*, by name.

    If the annotations use names that only type checkers import, they are returned as strings.
    """
    try:
        return getattr(kind, "__annotations__", {})
    except NameError:
        if sys.version_info >= (3, 14):
            from annotationlib import Format, get_annotations

            return get_annotations(kind, format=Format.STRING)
        raise
