"""Read the fields and parameters of objects that users and other packages make."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any


def read_field(holder: Any, field_name: str) -> Any:
    """Return the value of the key or attribute *field_name*; ``None`` if *holder* does not have it.

    Strings and bytes have no fields.
    """
    if isinstance(holder, Mapping):
        return holder.get(field_name)
    return None if isinstance(holder, str | bytes) else getattr(holder, field_name, None)


def read_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of *function*, by name.

    Raises `ValueError` or `TypeError` if the parameters are unknown, as for some builtins.
    """
    try:
        return inspect.signature(function).parameters
    except NameError:
        # From Python 3.14 on, annotations are evaluated when they are read, and may use names that
        # only type checkers import.
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.STRING).parameters
        raise
