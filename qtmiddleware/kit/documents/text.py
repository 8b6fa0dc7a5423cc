"""Read text files block by block."""

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
    """A piece of a document's text, such as a page, a paragraph or a row.

    Attributes:
        text: the words of this piece, as plain text.
        location: the text's location in the document, such as ``{"page": 3}``; empty for plain
            text.
        stands_alone: whether the text must not share a chunk with other text, because it is a
            record, such as a row of a table with metadata.
    """

    text: str = field(repr=False)
    location: Mapping[str, str | int | float] = field(default_factory=dict)
    stands_alone: bool = field(default=False, repr=False)


OWN: Final = frozenset(("source", "chunk", "start", "end", "text", "context"))
"""The metadata names that ingestion uses itself; a location must not contain them."""
PLACE_CHARS: Final = 200
"""The maximum length of a text in a location, in characters.

Locations repeat: the location of every paragraph below a heading contains this heading.
"""
_BLOCK: Final = 1 << 16
"""The number of bytes to read at once."""
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Text files may contain these control characters, so they are not listed: tab, line ends, form
# feed, the end-of-file character of DOS, and the escape character of coloured output.
_CONTROLS: Final = re.compile(r"[\x01-\x08\x0e-\x19\x1c-\x1f\x7f]")
_STRAY: Final = 100
"""The minimum number of characters per control character in a text file.

A file with more control characters counts as binary.
"""


def read_text(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the text of the open text file *file*, block by block.

    *path* is the path that error messages name. Raises `UnreadableDocument` if the file is empty,
    binary, or not in UTF-8 or UTF-16.
    """
    block = file.read(_BLOCK)
    encoding = "utf-16" if block.startswith(_UTF_16) else "utf-8-sig"
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    is_blank = True
    while True:
        if b"\0" in block and encoding != "utf-16":
            raise UnreadableDocument(path, "binary")
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            # The error is not chained, because it contains the bytes themselves.
            byte_position = max(0, file.tell() - len(block)) + error.start
            hint = f"near byte {byte_position}; convert it, for example: iconv -f LATIN1 -t UTF-8"
            raise UnreadableDocument(path, "not text in UTF-8", hint) from None
        if "\0" in text or len(_CONTROLS.findall(text)) * _STRAY > len(text):
            raise UnreadableDocument(path, "binary")
        is_blank = is_blank and not text.strip()
        if text:
            yield Piece(text)
        if not block:
            break
        block = file.read(_BLOCK)
    if is_blank:
        raise UnreadableDocument(path, "empty")
