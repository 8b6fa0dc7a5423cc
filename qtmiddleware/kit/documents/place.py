"""Describe the location of a chunk in its document, such as ``page 3``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtmiddleware.catalogue import PLACES


def describe_chunk_location(chunk_metadata: Mapping[str, Any]) -> str:
    """Return a chunk's location as text, such as ``page 3`` or ``sheet Costs, rows 12-31``.

    *chunk_metadata* is the chunk's metadata. Returns ``""`` if the metadata has no location. A
    heading is used only if the metadata has no other location, such as a page, because readers find
    a page faster.
    """
    names = [name for name in PLACES if _is_location_value(chunk_metadata.get(name))]
    names = [name for name in names if name != "heading"] or names
    first_values = {name: _format_value(chunk_metadata[name]) for name in names}
    last_values = {
        name: _format_value(chunk_metadata.get(f"last_{name}", chunk_metadata[name]))
        for name in names
    }
    changed_names = [name for name in names if first_values[name] != last_values[name]]
    # If only one number differs, a range is shorter than two locations.
    if len(changed_names) == 1 and isinstance(chunk_metadata[changed_names[0]], int | float):
        name = changed_names[0]
        return ", ".join(
            f"{other}s {first_values[other]}-{last_values[other]}"
            if other == name
            else f"{other} {first_values[other]}"
            for other in names
        )
    begin, end = (
        ", ".join(f"{name} {values[name]}" for name in names)
        for values in (first_values, last_values)
    )
    return begin if begin == end else f"{begin} to {end}"


def _is_location_value(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""


def _format_value(value: Any) -> str:
    # Pinecone stores every number as a float.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
