"""What the model is shown of a document when it places one chunk in it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from qtmiddleware.rag.ingestion.context_prompt import CHUNK_CHARS
from qtmiddleware.rag.ingestion.ledger import Ledger

WHOLE_CHARS: Final = 12_000
"""A document of at most so many characters is shown as it is."""
BEGINNING_CHARS: Final = 4_000
"""Characters of the beginning of a longer one."""
AROUND_CHARS: Final = 2_000
"""Characters before the chunk, and as many behind it."""

_FROM: Final = "SELECT start, stop, text FROM chunks WHERE document = ? AND ordinal >= ? ORDER BY ordinal"
_BEFORE: Final = "SELECT start, stop, text FROM chunks WHERE document = ? AND ordinal < ? ORDER BY ordinal DESC"

Piece = tuple[int, int, str]


class Views:
    """Puts documents together again from their chunks, as far as they are shown."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._document = 0
        self._length = 0
        self._beginning = ""

    def view(self, document: int, ordinal: int, start: int, stop: int) -> dict[str, str]:
        """What is shown of *document* beside the chunk from *start* to *stop*."""
        if document != self._document:
            self._turn_to(document)
        if self._length <= WHOLE_CHARS:
            return {"document": self._beginning}
        return {"beginning": self._beginning, "surroundings": self._around(document, ordinal, start, stop)}

    def _turn_to(self, document: int) -> None:
        self._document = document
        self._length = self._ledger.value("SELECT max(stop) FROM chunks WHERE document = ?", [document]) or 0
        shown = WHOLE_CHARS if self._length <= WHOLE_CHARS else BEGINNING_CHARS
        ahead = self._ledger.stream(_FROM, [document, 0])
        self._beginning = _rejoined(takewhile(lambda piece: piece[0] < shown, ahead), 0, shown)

    def _around(self, document: int, ordinal: int, start: int, stop: int) -> str:
        first, last = max(0, start - AROUND_CHARS), min(stop, start + CHUNK_CHARS) + AROUND_CHARS
        back = self._ledger.stream(_BEFORE, [document, ordinal])
        ahead = self._ledger.stream(_FROM, [document, ordinal])
        before = list(takewhile(lambda piece: piece[1] > first, back))
        return _rejoined([*reversed(before), *takewhile(lambda piece: piece[0] < last, ahead)], first, last)


def _rejoined(pieces: Iterable[Piece], first: int, last: int) -> str:
    """The text from *first* to *last*, out of chunks that overlap."""
    parts = []
    for start, stop, text in pieces:
        parts.append(text[max(0, first - start) : max(0, last - start)])
        first = max(first, stop)
    return "".join(parts)
