"""What reading a document gives: pieces of its text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document's text; *page* counts from 1 and is ``None`` where a document has no pages."""

    text: str = field(repr=False)
    page: int | None = None
