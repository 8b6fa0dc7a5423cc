"""Limit the text of documents, and the time to read them.

The limits are far above the needs of ordinary documents. They stop a small file that refers to one
page, slide or text millions of times, and a folder with many such files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import thread_time
from typing import Final

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.text import Piece

CHARS_PER_BYTE: Final = 100
"""Characters of text and places allowed per byte of a document.

Text files have 1 character per byte, Office files and books some 10, and a CSV of digits that
repeats long column names has 50.
"""
SPARE_CHARS: Final = 1 << 26
"""Characters allowed beyond that, for all documents of one run together."""

_SPARE_SECONDS: Final = 120.0
_SECONDS_PER_MB: Final = 120.0
"""Processor seconds allowed per MB of a document.

The slowest honest documents, spreadsheets, take some 10 seconds per MB.
"""


class TextBound:
    """Limits the text of all documents of one run.

    Each document may have `CHARS_PER_BYTE` characters per byte of its file. All documents together
    may exceed their limits by *spare* characters.
    """

    def __init__(self, spare: int = SPARE_CHARS) -> None:
        self._shared = self._spare = spare

    def limit(self, path: Path, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the *pieces* of the document at *path* until their text exceeds the limit.

        Raises `UnreadableDocument` at that point.
        """
        size = path.stat().st_size
        remaining, count = size * CHARS_PER_BYTE, 0
        for piece in pieces:
            chars = count_chars(piece)
            remaining, count = remaining - chars, count + chars
            if remaining < 0:
                # The spare characters that a document used stay used. Otherwise each of a hundred
                # such files would have all of them.
                remaining, self._spare = 0, max(0, self._spare + remaining)
                if not self._spare:
                    raise UnreadableDocument(path, "too large", self._describe_excess(size, count))
            yield piece

    def _describe_excess(self, size: int, count: int) -> str:
        return (
            f"{size:,} bytes give more than {count:,} characters of text; the limit is"
            f" {CHARS_PER_BYTE} per byte and {self._shared:,} more for all documents of a run; save"
            " the file as CSV or plain text"
        )


def count_chars(piece: Piece) -> int:
    """Return the number of characters in the text and the location of *piece*."""
    return len(piece.text) + sum(len(name) + len(str(value)) for name, value in piece.place.items())


def limit_time(path: Path, pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Yield the *pieces* of the document at *path* until reading them takes too long.

    Then raises `UnreadableDocument`. `compute_time_limit` returns the limit for *size* bytes. The
    caller's own processor time does not count.
    """
    iterator, used_seconds, allowed_seconds = iter(pieces), 0.0, compute_time_limit(size)
    while True:
        start = thread_time()
        piece = next(iterator, None)
        used_seconds += thread_time() - start
        if used_seconds > allowed_seconds:
            raise build_late_error(path, allowed_seconds)
        if piece is None:
            return
        yield piece


def compute_time_limit(size: int) -> float:
    """Return the processor time, in seconds, that reading a document of *size* bytes may take."""
    return _SPARE_SECONDS + _SECONDS_PER_MB * size / (1 << 20)


def build_late_error(path: Path, seconds: float) -> UnreadableDocument:
    """Return the error for a document that took more than *seconds* of processor time to read."""
    detail = (
        f"reading it takes more than {seconds:,.0f} seconds of processor time; save the file in"
        " smaller parts"
    )
    return UnreadableDocument(path, "too large", detail)
