"""Describe the location of a chunk in its document, such as ``page 3``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtmiddleware.catalogue import PLACES


def describe_chunk_location(chunk_metadata: Mapping[str, Any]) -> str:
    """Return a chunk's location as text, such as ``page 3`` or ``sheet Costs, rows 12-31``.

    Returns ``""`` if the metadata has no location. A heading is used only if there is no other
    location, because readers find a page faster.
    """
    found = {
        name: _format_value(chunk_metadata[name])
        for name in PLACES
        if isinstance(chunk_metadata.get(name), str | int | float) and chunk_metadata[name] != ""
    }
    first = {name: value for name, value in found.items() if name != "heading"} or found
    last = {
        name: _format_value(chunk_metadata.get(f"last_{name}", value))
        for name, value in first.items()
    }
    changed = [name for name in first if first[name] != last[name]]
    # If only one number differs, a range is shorter than two locations.
    if len(changed) == 1 and first[changed[0]].isdecimal():
        name = changed[0]
        shown = {**first, name: f"{first[name]}-{last[name]}"}
        return ", ".join(
            f"{it}s {shown[it]}" if it == name else f"{it} {shown[it]}" for it in shown
        )
    begin, end = (
        ", ".join(f"{name} {value}" for name, value in place.items()) for place in (first, last)
    )
    return begin if begin == end else f"{begin} to {end}"


def _format_value(value: Any) -> str:
    # Pinecone stores every number as a float.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
