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
"""The maximum number of characters of text and locations per byte of a document.

Text files have 1 character per byte, Office files about 10. A CSV file with long column
names and short numbers has 50.
"""
SPARE_CHARS: Final = 1 << 26
"""The number of characters by which the documents of a run may exceed their limits in total."""

_SPARE_SECONDS: Final = 120.0
_SECONDS_PER_MB: Final = 120.0
"""The maximum processor time per MB of a document, in seconds.

The slowest ordinary documents, spreadsheets, take about 10 seconds per MB.
"""


class TextBound:
    """Limits how much text a run reads from its documents.

    The limit of a document is `CHARS_PER_BYTE` characters per byte of its file. In total, the
    documents of a run may exceed their limits by *spare_chars* characters.
    """

    def __init__(self, spare_chars: int = SPARE_CHARS) -> None:
        self._initial_chars = self._spare_chars = spare_chars

    def limit_text(self, path: Path, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the *pieces* of the document at *path*.

        Raises `UnreadableDocument` as soon as their text is longer than the limit.
        """
        size = path.stat().st_size
        remaining, count = size * CHARS_PER_BYTE, 0
        for piece in pieces:
            chars = count_chars(piece)
            remaining, count = remaining - chars, count + chars
            if remaining < 0:
                # Spare characters that a document used stay used. Otherwise each of a hundred such
                # files could use all of them.
                remaining, self._spare_chars = 0, max(0, self._spare_chars + remaining)
                if not self._spare_chars:
                    raise UnreadableDocument(path, "too large", self._describe_excess(size, count))
            yield piece

    def _describe_excess(self, file_bytes: int, text_chars: int) -> str:
        return (
            f"{file_bytes:,} bytes give more than {text_chars:,} characters of text; the limit is"
            f" {CHARS_PER_BYTE} per byte and {self._initial_chars:,} more for all documents of a"
            " run; save the file as CSV or plain text"
        )


def count_chars(piece: Piece) -> int:
    """Return the number of characters in the text and the location of *piece*."""
    return len(piece.text) + sum(
        len(name) + len(str(value)) for name, value in piece.location.items()
    )


def limit_reading_time(path: Path, pieces: Iterable[Piece], file_bytes: int) -> Iterator[Piece]:
    """Yield the *pieces* of the document at *path*.

    Raises `UnreadableDocument` if reading the pieces takes more processor time than
    `compute_time_limit` allows for a file of *file_bytes*. The time that the caller uses between
    two pieces does not count.
    """
    iterator, used_seconds, allowed_seconds = iter(pieces), 0.0, compute_time_limit(file_bytes)
    while True:
        start = thread_time()
        piece = next(iterator, None)
        # Processor time counts, because reading takes longer on a busy machine.
        used_seconds += thread_time() - start
        if used_seconds > allowed_seconds:
            raise build_timeout_error(path, allowed_seconds)
        if piece is None:
            return
        yield piece


def compute_time_limit(file_bytes: int) -> float:
    """Return the maximum processor time in seconds for reading a file of *file_bytes*."""
    return _SPARE_SECONDS + _SECONDS_PER_MB * file_bytes / (1 << 20)


def build_timeout_error(path: Path, limit_seconds: float) -> UnreadableDocument:
    """Return the error to raise if reading *path* takes over *limit_seconds* of processor time."""
    detail = (
        f"reading it takes more than {limit_seconds:,.0f} seconds of processor time; save the file"
        " in smaller parts"
    )
    return UnreadableDocument(path, "too large", detail)
