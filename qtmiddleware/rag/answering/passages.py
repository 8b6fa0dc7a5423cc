"""Which passages the model is shown, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from qtmiddleware.types import Match

_LABELS: Final = ("title", "source", "url", "page")
_LABEL_CHARS: Final = 200
_CONTEXT_CHARS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Shown:
    """The *matches* the model is shown, numbered from 1 in this order, and what of each, as data for a prompt."""

    matches: tuple[Match, ...] = ()
    entries: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


def shown(matches: Sequence[Match], most_chars: int) -> Shown:
    """The first of *matches* that have a text, as many as fit whole into *most_chars*.

    Where the first alone is too long it is cut. Title, source, url and page of the metadata come with the text, and so
    does the ``context`` that ingestion may have written for a chunk.
    """
    kept: list[Match] = []
    entries: list[dict[str, Any]] = []
    left = most_chars
    for match in matches:
        text = (match.text or "").strip()
        if not text:
            continue
        about = _about(match.metadata)
        size = sum(len(str(value)) for value in about.values())
        if size + len(text) > left:
            if kept:
                break
            if size > most_chars // 2:
                about, size = {}, 0
            text = text[: max(1, left - size - 1)].rstrip() + "…"
        kept.append(match)
        entries.append({"passage": len(kept), **about, "text": text})
        left -= size + len(text)
    return Shown(tuple(kept), tuple(entries))


def _about(metadata: Mapping[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {}
    for label in _LABELS:
        value = metadata.get(label)
        if isinstance(value, str) and value.strip():
            about[label] = value.strip()[:_LABEL_CHARS]
        elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            # Pinecone keeps every number as a float.
            about[label] = int(value) if value == int(value) else value
    context = metadata.get("context")
    if isinstance(context, str) and context.strip():
        about["context"] = context.strip()[:_CONTEXT_CHARS]
    return about
