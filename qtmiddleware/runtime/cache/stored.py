"""How a transformation is written down for other processes, and read back by them."""

from __future__ import annotations

import json
from typing import Any, Final

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS, Transformation

FORMAT: Final = 2
"""Part of every value and of every key: what another format wrote is never met, let alone taken for damaged."""

MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1_024


def encode(made: Transformation) -> bytes | None:
    """*made* as compact JSON, which holds what is not empty; ``None`` where it is beyond what `decode` reads.

    UTF-8 with surrogates that stand alone written as they are: as JSON escapes two of them would come back as one
    character.
    """
    held: dict[str, Any] = {"v": FORMAT}
    for name in (*TEXT_FIELDS, "notes"):
        value = getattr(made, name)
        if value is not None and value != ():
            held[name] = value
    if any(len(value) > MAX_ITEMS for value in held.values() if isinstance(value, tuple)):
        return None
    written = json.dumps(held, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return written if len(written) <= MAX_BYTES else None


def decode(written: bytes) -> Transformation | None:
    """The transformation that `encode` wrote as *written*; ``None`` for anything it would not have written so.

    At most `MAX_BYTES` are read, and `MAX_ITEMS` in a list.
    """
    if len(written) > MAX_BYTES:
        return None
    try:
        held = json.loads(written.decode("utf-8", "surrogatepass"))
        made = _transformation(held)
        return made if made is not None and encode(made) == written else None
    except (ValueError, RecursionError):
        return None


def _transformation(held: Any) -> Transformation | None:
    if not isinstance(held, dict):
        return None
    texts: dict[str, Any] = {}
    for name, row in TEXT_FIELDS.items():
        value = held.get(name, NOTHING)
        if value is NOTHING:
            continue
        if not (_are_texts(value) if row.shape == "list" else isinstance(value, str)):
            return None
        texts[name] = tuple(value) if row.shape == "list" else value
    notes = held.get("notes", [])
    if not isinstance(notes, list) or not all(_are_texts(note) and len(note) == 2 for note in notes):
        return None
    # The format's number and unknown names are not looked at: written again, they would be other bytes.
    return Transformation(**texts, notes=tuple((field, what) for field, what in notes))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
