"""Text files, block by block."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from qtmiddleware.errors import UnreadableDocument


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document's text, and its *place*: ``{"page": 3}``, or nothing where a document has no places.

    One that *stands_alone* is the text of a record; no chunk holds more than that.
    """

    text: str = field(repr=False)
    place: Mapping[str, str | int | float] = field(default_factory=dict)
    stands_alone: bool = field(default=False, repr=False)


OWN: Final = frozenset(("source", "chunk", "start", "end", "text", "context"))
"""What is kept of every chunk, which no place stands in for."""
PLACE_CHARS: Final = 200
"""Characters that are kept of each text in a place: a heading stands beside every paragraph below it."""
_BLOCK: Final = 1 << 16
"""Bytes that are read at once."""
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Tab, the line ends, the form feed, the end of file of DOS and the escape of coloured output are
# found in texts.
_CONTROLS: Final = re.compile(r"[\x01-\x08\x0e-\x19\x1c-\x1f\x7f]")
_STRAY: Final = 100
"""One control character among so many is dirt in a text; more of them make a binary file."""


def read_text(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The text of *file*, which is the one at *path*."""
    block = file.read(_BLOCK)
    encoding = "utf-16" if block.startswith(_UTF_16) else "utf-8-sig"
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    blank = True
    while True:
        if b"\0" in block and encoding != "utf-16":
            raise UnreadableDocument(path, "binary")
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            # Not chained: the error holds the bytes themselves.
            place = max(0, file.tell() - len(block)) + error.start
            hint = f"near byte {place}; convert it, for example: iconv -f LATIN1 -t UTF-8"
            raise UnreadableDocument(path, "not text in UTF-8", hint) from None
        if "\0" in text or len(_CONTROLS.findall(text)) * _STRAY > len(text):
            raise UnreadableDocument(path, "binary")
        blank = blank and not text.strip()
        if text:
            yield Piece(text)
        if not block:
            break
        block = file.read(_BLOCK)
    if blank:
        raise UnreadableDocument(path, "empty")
