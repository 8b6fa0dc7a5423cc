"""Read text files, call the user's own reader, and limit the text of a document."""

from __future__ import annotations

import codecs
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import UnreadableDocument

Location = Mapping[str, str | int | float]
Reader = Callable[[Path], "str | Iterable[str | tuple[str, Mapping[str, str | int]]] | None"]
"""The user's own reader: a function that takes a path and returns the text of the file.

The result is one text, several texts, several (text, location) pairs, or ``None`` for a file that
the built-in readers should read.
"""


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
    location: Location = field(default_factory=dict)
    stands_alone: bool = field(default=False, repr=False)


OWN: Final = frozenset(("source", "chunk", "start", "end", "text", "context"))
"""The metadata names that ingestion uses itself; a location must not contain them."""
PLACE_CHARS: Final = 200
"""The maximum length of a text in a location, in characters.

Locations repeat: the location of every paragraph below a heading contains this heading.
"""
MOST_BYTES: Final = 256 << 20
"""The maximum size of a document, in bytes. A document is read into memory as a whole."""
CHARS_PER_BYTE: Final = 100
"""The maximum number of characters of text per byte of a document, beyond `SPARE_CHARS`.

Text files have 1 character per byte, Office files about 10. A table with long column names and
short numbers has 50.
"""
SPARE_CHARS: Final = 1_000_000

_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Text files may contain these control characters, so they are not listed: tab, line ends, form
# feed, the end-of-file character of DOS, and the escape character of coloured output.
_CONTROLS: Final = re.compile(r"[\x01-\x08\x0e-\x19\x1c-\x1f\x7f]")
_STRAY: Final = 100
"""The minimum number of characters per control character in a text file.

A file with more control characters counts as binary.
"""


def read_text(path: Path, file: BinaryIO) -> str:
    r"""Return the text of the open text file *file*, in which every line break is ``\n``.

    *path* is the path that error messages name. Raises `UnreadableDocument` if the file is empty,
    binary, or not in UTF-8, or UTF-16 with a byte order mark.
    """
    content = file.read()
    encoding = "utf-16" if content.startswith(_UTF_16) else "utf-8-sig"
    if b"\0" in content and encoding != "utf-16":
        raise UnreadableDocument(path, "binary")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        # The error is not chained, because it contains the bytes themselves.
        hint = f"near byte {error.start}; convert it, for example: iconv -f LATIN1 -t UTF-8"
        raise UnreadableDocument(path, "not text in UTF-8", hint) from None
    if "\0" in text or len(_CONTROLS.findall(text)) * _STRAY > len(text):
        raise UnreadableDocument(path, "binary")
    if not text.strip():
        raise UnreadableDocument(path, "empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_size(path: Path, file: BinaryIO) -> int:
    """Return the size of *file*, or raise `UnreadableDocument` if it is too large."""
    size = os.fstat(file.fileno()).st_size
    if size > MOST_BYTES:
        detail = f"more than {MOST_BYTES >> 20} MB; save it in smaller parts"
        raise UnreadableDocument(path, "too large", detail)
    return size


def limit_text(path: Path, pieces: Iterable[Piece], file_bytes: int) -> list[Piece]:
    """Return the *pieces* of the document at *path*.

    Raises `UnreadableDocument` as soon as they have too much text for a file of *file_bytes*, and
    if all of them are blank.
    """
    kept = []
    most = SPARE_CHARS + CHARS_PER_BYTE * file_bytes
    chars = 0
    for piece in pieces:
        location = {
            name: value[:PLACE_CHARS] if isinstance(value, str) else value
            for name, value in piece.location.items()
        }
        kept.append(Piece(piece.text, location, piece.stands_alone))
        chars += len(piece.text) + sum(len(f"{name}{value}") for name, value in location.items())
        if chars > most:
            detail = (
                f"{file_bytes:,} bytes give more than {most:,} characters of text; save the file"
                " as CSV or plain text"
            )
            raise UnreadableDocument(path, "too large", detail)
    if not any(piece.text.strip() for piece in kept):
        raise UnreadableDocument(path, "no text in it")
    return kept


class _InvalidResult(TypeError):
    """Raised if the user's reader returned something other than text.

    The message does not quote the returned value, so the message can be shown.
    """


def call_reader(reader: Reader, path: Path) -> list[Piece] | None:
    """Read the file at *path* with the user's *reader*, and return the pieces.

    Returns ``None`` if *reader* returns ``None``, which leaves the file to the built-in readers.
    Raises `UnreadableDocument` if *reader* raises any exception, or returns something other than
    text, or only blank text.
    """
    with _explain_reader_errors(path):
        result: Any = reader(path)
        if result is None:
            return None
        # A coroutine that nobody awaits would issue a warning later.
        if inspect.iscoroutine(result):
            result.close()
            raise _InvalidResult("the reader must be a plain function that returns text, not async")
        if isinstance(result, bytes | Mapping) or not isinstance(result, Iterable):
            raise _InvalidResult(f"the reader must return text, not {type(result).__name__}")
        items = [result] if isinstance(result, str) else result
        pieces = [_convert_item(item) for item in items]
    if not any(piece.text.strip() for piece in pieces):
        raise UnreadableDocument(path, "empty")
    return pieces


def _convert_item(item: Any) -> Piece:
    """Return an item of the user's reader, a text or a (text, location) pair, as a piece."""
    text, location = item if isinstance(item, tuple) and len(item) == 2 else (item, {})
    if not isinstance(text, str):
        raise _InvalidResult(f"the reader must yield text, not {type(text).__name__}")
    location = {name: value for name, value in dict(location).items() if value is not None}
    for name, value in location.items():
        if not isinstance(name, str) or name in OWN or not isinstance(value, str | int | float):
            raise _InvalidResult(f"{name!r} is no place")
    return Piece(text, location)


@contextmanager
def _explain_reader_errors(path: Path) -> Iterator[None]:
    """Convert any exception that the user's reader raises for *path* into `UnreadableDocument`."""
    try:
        yield
    except UnreadableDocument:
        raise
    except Exception as error:
        # The message of a foreign error may quote the document's text.
        detail = str(error) if isinstance(error, _InvalidResult) else type(error).__name__
        raise UnreadableDocument(path, "its reader failed", detail) from error
