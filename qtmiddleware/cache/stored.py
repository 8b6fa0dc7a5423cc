"""How a transformation is written down for other processes, and read back by them."""

from __future__ import annotations

import json
from typing import Any, Final

from qtmiddleware.types import Transformation

FORMAT: Final = 1
"""Part of every value and of every key: what another format wrote is never met, let alone taken for damaged."""

MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1_024

_TEXTS: Final = ("standalone", "rewrite", "step_back", "hyde")
_LISTS: Final = ("sub_queries", "paraphrases", "keywords")


def encode(made: Transformation) -> bytes | None:
    """*made* as compact JSON, which holds what is not empty; ``None`` where it is beyond what `decode` reads.

    UTF-8 with surrogates that stand alone written as they are: as JSON escapes two of them would come back as one
    character.
    """
    if max(map(len, (made.sub_queries, made.paraphrases, made.keywords, made.notes))) > MAX_ITEMS:
        return None
    held: dict[str, Any] = {"v": FORMAT}
    held.update({name: text for name in _TEXTS if (text := getattr(made, name)) is not None})
    held.update({name: list(texts) for name in _LISTS if (texts := getattr(made, name))})
    if made.notes:
        held["notes"] = [list(note) for note in made.notes]
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
    texts = {name: held[name] for name in _TEXTS if name in held}
    lists = {name: held[name] for name in _LISTS if name in held}
    notes = held.get("notes", [])
    if not all(isinstance(text, str) for text in texts.values()) or not all(map(_are_texts, lists.values())):
        return None
    if not isinstance(notes, list) or not all(_are_texts(note) and len(note) == 2 for note in notes):
        return None
    # The format's number and unknown names are not looked at: written again, they would be other bytes.
    fields: dict[str, Any] = {**texts, **{name: tuple(one) for name, one in lists.items()}}
    return Transformation(**fields, notes=tuple((field, what) for field, what in notes))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
