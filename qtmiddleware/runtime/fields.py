"""Reading what somebody else's object or mapping holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read_field(holder: Any, name: str) -> Any:
    """Return the value *name* of a mapping or an object, ``None`` if it has none. Text has no fields."""
    if isinstance(holder, Mapping):
        return holder.get(name)
    return None if isinstance(holder, str | bytes) else getattr(holder, name, None)
