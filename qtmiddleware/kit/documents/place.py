"""Describe the location of a chunk in its document, such as ``page 3``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtmiddleware.catalogue import PLACES


def describe_chunk_location(chunk_metadata: Mapping[str, Any]) -> str:
    """Return a chunk's location as text, such as ``page 3`` or ``sheet Costs, row 12 to 31``.

    Returns ``""`` if the metadata has no location. A heading is used only if there is no other
    location, because readers find a page faster.
    """
    known = [
        name
        for name in PLACES
        if isinstance(chunk_metadata.get(name), str | int | float) and chunk_metadata[name] != ""
    ]
    parts = []
    for name in [name for name in known if name != "heading"] or known:
        first = _format_value(chunk_metadata[name])
        last = _format_value(chunk_metadata.get(f"last_{name}", first))
        parts.append(f"{name} {first}" if first == last else f"{name} {first} to {last}")
    return ", ".join(parts)


def _format_value(value: Any) -> str:
    # Pinecone stores every number as a float.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
