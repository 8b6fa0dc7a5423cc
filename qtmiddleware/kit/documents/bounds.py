"""How much text documents may hold and how long they may take: more than honest ones need, so that each has an end.

A few kilobytes can name one page, slide or text millions of times, and a folder can hold many such
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import thread_time
from typing import Final

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.text import Piece

CHARS_PER_BYTE: Final = 100
"""Characters of text and places that each byte of a document may give.

Text files give 1, Office files and books some 10, and 50 a CSV of digits whose long column names
stand at each of them.
"""
SPARE_CHARS: Final = 1 << 26
"""Characters beyond that, for all documents of one run together."""

_SPARE_SECONDS: Final = 120.0
_SECONDS_PER_MB: Final = 120.0
"""Processor time for a whole document: the slowest honest ones, spreadsheets, take some 10 seconds per MB."""


class TextBound:
    """The text that the documents of one run may hold, *spare* characters beyond what belongs to their sizes."""

    def __init__(self, spare: int = SPARE_CHARS) -> None:
        self._most = self._spare = spare

    def limit(self, path: Path, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield *pieces*, those of the document at *path*; raises `UnreadableDocument` when they grow too long."""
        size = path.stat().st_size
        left, count = size * CHARS_PER_BYTE, 0
        for piece in pieces:
            chars = count_chars(piece)
            left, count = left - chars, count + chars
            if left < 0:
                # What a document used beyond its size stays used, or a hundred such files would
                # each have all of it.
                left, self._spare = 0, max(0, self._spare + left)
                if not self._spare:
                    raise UnreadableDocument(path, "too large", self._describe_excess(size, count))
            yield piece

    def _describe_excess(self, size: int, count: int) -> str:
        return (
            f"{size:,} bytes give more than {count:,} characters of text; the limit is"
            f" {CHARS_PER_BYTE} per byte and {self._most:,} more for all documents of a run; save"
            " the file as CSV or plain text"
        )


def count_chars(piece: Piece) -> int:
    """How many characters *piece* has, those of its place included."""
    return len(piece.text) + sum(len(name) + len(str(value)) for name, value in piece.place.items())


def limit_time(path: Path, pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Yield *pieces*, those of the document at *path*, which has *size* bytes.

    Raises `UnreadableDocument` when making them takes more of the processor's time than
    `find_seconds`. The time that the reader of the pieces takes does not count, nor that of other
    programs.
    """
    rest, used, most = iter(pieces), 0.0, find_seconds(size)
    while True:
        began = thread_time()
        piece = next(rest, None)
        used += thread_time() - began
        if used > most:
            raise build_late_error(path, most)
        if piece is None:
            return
        yield piece


def find_seconds(size: int) -> float:
    """How many seconds of processor time a document of *size* bytes may take."""
    return _SPARE_SECONDS + _SECONDS_PER_MB * size / (1 << 20)


def build_late_error(path: Path, seconds: float) -> UnreadableDocument:
    """Return the error for the document at *path*, which took more than *seconds*."""
    detail = (
        f"reading it takes more than {seconds:,.0f} seconds of processor time; save the file in"
        " smaller parts"
    )
    return UnreadableDocument(path, "too large", detail)
