"""Read text files, and limit how much text a document has."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.providers import replace_surrogates

Location = Mapping[str, str | int | float]

# The metadata names that ingestion uses itself; a location must not contain them.
OWN: Final = frozenset(("source", "chunk", "start", "end", "text", "context"))
# The maximum length of a text in a location, because every paragraph repeats its heading.
PLACE_CHARS: Final = 200
# The maximum size of a document, in bytes. A document is read into memory as a whole.
MOST_BYTES: Final = 256 << 20
# The maximum number of characters of text per byte of a document, beyond `SPARE_CHARS`.
# Text files have 1 per byte, Office files 10, a table with long column names and short numbers
# 50.
CHARS_PER_BYTE: Final = 100
SPARE_CHARS: Final = 1_000_000

# All control characters except tab, line ends, form feed, DOS's end of file, and escape (colours).
_CONTROLS: Final = re.compile(r"[\0-\x08\x0e-\x19\x1c-\x1f\x7f]")
# A text file with fewer characters per control character counts as binary.
_CHARS_PER_CONTROL: Final = 100


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a document's text, such as a page, a paragraph or a row.

    Attributes:
        text: the words of this piece, as plain text.
        location: where the piece is, such as ``{"page": 3}``; empty for plain text.
        stands_alone: whether the text must not share a chunk with other text.
    """

    text: str = field(repr=False)
    location: Location = field(default_factory=dict)
    stands_alone: bool = field(default=False, repr=False)


def read_text(path: Path, file: BinaryIO) -> str:
    r"""Return the text of an open file, in UTF-8 or marked UTF-16, with ``\n`` as line break."""
    content = file.read()
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in content:
        raise UnreadableDocument(path, "binary")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        # The error is not chained, because it contains the bytes themselves.
        hint = f"near byte {error.start}; convert it, for example: iconv -f LATIN1 -t UTF-8"
        raise UnreadableDocument(path, "not text in UTF-8", hint) from None
    if "\0" in text or len(_CONTROLS.findall(text)) * _CHARS_PER_CONTROL > len(text):
        raise UnreadableDocument(path, "binary")
    if not text.strip():
        raise UnreadableDocument(path, "empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_plain_text(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the whole text of an open file."""
    yield Piece(read_text(path, file))


def check_size(path: Path, file: BinaryIO) -> int:
    """Return the size of *file*, or raise `UnreadableDocument` if it is too large."""
    size = os.fstat(file.fileno()).st_size
    if size > MOST_BYTES:
        detail = f"more than {MOST_BYTES >> 20} MB; save it in smaller parts"
        raise UnreadableDocument(path, "too large", detail)
    return size


def shorten_location(location: Location) -> Location:
    """Return *location* with texts of at most `PLACE_CHARS` characters, in valid Unicode."""
    return {
        name: replace_surrogates(value[:PLACE_CHARS]) if isinstance(value, str) else value
        for name, value in location.items()
    }


def limit_text(path: Path, pieces: Iterable[Piece], file_bytes: int) -> list[Piece]:
    """Return *pieces*, unless they have too much text for *file_bytes*, or none at all."""
    kept = []
    chars_left = SPARE_CHARS + CHARS_PER_BYTE * file_bytes
    for piece in pieces:
        location = shorten_location(piece.location)
        kept.append(Piece(piece.text, location, piece.stands_alone))
        chars_left -= len(piece.text) + sum(len(f"{place}") for place in location.items())
        if chars_left < 0:
            detail = f"too much text for {file_bytes:,} bytes; save it as CSV or plain text"
            raise UnreadableDocument(path, "too large", detail)
    if not any(piece.text.strip() for piece in kept):
        raise UnreadableDocument(path, "no text in it")
    return kept
