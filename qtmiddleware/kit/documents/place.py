"""Where in its document a chunk stands, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtmiddleware.catalogue import PLACES


def describe_place(metadata: Mapping[str, Any]) -> str:
    """``page 3``, ``sheet Costs, rows 12-31`` or ``sheet A, row 9 to sheet B, row 2``; ``""`` where it has no place.

    Headings are left out beside the others: they may be long, and numbers are found faster.
    """
    names = [name for name in PLACES if _is_known(metadata.get(name))]
    names = [name for name in names if name != "heading"] or names
    firsts = {name: _write(metadata[name]) for name in names}
    lasts = {name: _write(metadata.get(f"last_{name}", metadata[name])) for name in names}
    changed = [name for name in names if firsts[name] != lasts[name]]
    if len(changed) == 1 and isinstance(metadata[changed[0]], int | float):
        name = changed[0]
        return ", ".join(
            f"{it}s {firsts[it]}-{lasts[it]}" if it == name else f"{it} {firsts[it]}"
            for it in names
        )
    first, last = (", ".join(f"{it} {values[it]}" for it in names) for values in (firsts, lasts))
    return first if first == last else f"{first} to {last}"


def _is_known(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""


def _write(value: Any) -> str:
    # Pinecone keeps every number as a float.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
