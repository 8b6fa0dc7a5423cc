"""Describe the location of a chunk in its document, such as ``page 3``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtmiddleware.catalogue import PLACES


def describe_chunk_location(metadata: Mapping[str, Any]) -> str:
    """Return a chunk's location as text, such as ``page 3 to 4``; ``""`` if there is none."""
    places = []
    for name in PLACES:
        first = metadata.get(name)
        if isinstance(first, str | int | float) and first != "":
            last = metadata.get(f"last_{name}", first)
            end = "" if last == first else f" to {_format_value(last)}"
            places.append(f"{name} {_format_value(first)}{end}")
    return ", ".join(places)


def _format_value(value: Any) -> str:
    # Pinecone stores every number as a float.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
