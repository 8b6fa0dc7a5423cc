"""Read text files, and limit the size of documents."""

from __future__ import annotations

import codecs
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
# The maximum length of a text in a location, which each chunk repeats.
PLACE_CHARS: Final = 200
# The maximum size of a document in bytes, of its unpacked parts in bytes, and of its text in
# characters.
MOST_BYTES: Final = 256 << 20

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
    if len(_CONTROLS.findall(text)) * _CHARS_PER_CONTROL > len(text):
        raise UnreadableDocument(path, "binary")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_plain_text(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the whole text of an open file."""
    yield Piece(read_text(path, file))


def check_size(path: Path, size: int, unit: str = "MB") -> None:
    """Raise `UnreadableDocument` if *size*, in bytes or characters, is above `MOST_BYTES`."""
    if size > MOST_BYTES:
        detail = f"more than {MOST_BYTES >> 20} {unit}; save it in smaller parts"
        raise UnreadableDocument(path, "too large", detail)


def shorten_location(location: Location) -> Location:
    """Return *location* with texts of at most `PLACE_CHARS` characters, in valid Unicode."""
    return {
        name: replace_surrogates(value[:PLACE_CHARS]) if isinstance(value, str) else value
        for name, value in location.items()
    }


def collect_pieces(path: Path, pieces: Iterable[Piece]) -> list[Piece]:
    """Return *pieces* as a list, unless they have too much text or none at all."""
    kept = []
    chars = 0
    for piece in pieces:
        chars += len(piece.text)
        check_size(path, chars, "million characters")
        kept.append(Piece(piece.text, shorten_location(piece.location), piece.stands_alone))
    if not any(piece.text.strip() for piece in kept):
        raise UnreadableDocument(path, "no text in it")
    return kept
