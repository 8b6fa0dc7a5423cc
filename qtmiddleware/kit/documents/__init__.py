"""Find documents, read them, and split them into chunks.

Each chunk records its location in the document, such as the page number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.chunking import Chunk, check_sizes, cut_into_chunks
from qtmiddleware.kit.documents.converting import READERS, Converter, read_file
from qtmiddleware.kit.documents.finding import find_documents, format_file_counts
from qtmiddleware.kit.documents.pieces import OWN, Location, Piece, shorten_location

Reader = Callable[[Path], "str | Iterable[str | tuple[str, Mapping[str, str | int]]] | None"]
"""The user's own reader: a function that takes a path and returns the text of the file.

The result is one text, several texts, several (text, location) pairs, or ``None`` for a file that
the built-in readers should read.
"""


def read_document(
    path: Path,
    *,
    follow_link: bool = True,
    reader: Reader | None = None,
    converter: Converter | None = None,
) -> list[Piece]:
    r"""Return the text of the document at *path*, in pieces such as pages or paragraphs.

    A text file (UTF-8, or UTF-16 with a byte order mark) is one piece, in which every line break is
    ``\n``.

    Raises:
        UnreadableDocument: if the document cannot be read, or is too large.
        MissingExtra: if a package for this file type is not installed.
    """
    own_pieces = None if reader is None else _call_reader(reader, path)
    if own_pieces is not None:
        return own_pieces
    if path.suffix.casefold() not in READERS:
        return read_file(path, follow_link=follow_link)
    try:
        with nullcontext(converter) if converter is not None else Converter() as opened:
            return opened.read(path, follow_link=follow_link)
    except OSError as error:
        raise UnreadableDocument(path, "cannot be opened", error.strerror or "") from error


def _call_reader(reader: Reader, path: Path) -> list[Piece] | None:
    """Read the file at *path* with the user's *reader*; ``None`` leaves it to the built-in ones."""
    try:
        result: Any = reader(path)
        if result is None:
            return None
        pieces = [_make_piece(item) for item in ([result] if isinstance(result, str) else result)]
    except UnreadableDocument:
        raise
    except Exception as error:
        # Only the kind of the error: its message may quote the document's text.
        raise UnreadableDocument(path, "its reader failed", type(error).__name__) from error
    if not any(piece.text.strip() for piece in pieces):
        raise UnreadableDocument(path, "empty")
    return pieces


def _make_piece(item: Any) -> Piece:
    text, location = item if isinstance(item, tuple) else (item, {})
    if not isinstance(text, str) or not all(
        isinstance(name, str) and name not in OWN and isinstance(value, str | int | float)
        for name, value in location.items()
    ):
        raise TypeError
    return Piece(text, shorten_location(location))


def cut_document(
    path: Path,
    *,
    size: int,
    overlap: int,
    boundary: ChunkBoundary = "sentence",
    follow_link: bool = True,
    reader: Reader | None = None,
    converter: Converter | None = None,
) -> Iterator[Chunk]:
    """Yield the chunks of the document at *path*.

    See `cut_into_chunks` for *size*, *overlap* and *boundary*, and `read_document` for the other
    parameters and errors. A chunk of only white space has an empty location. The text of a record
    (a piece with ``stands_alone``) shares no chunk with other texts.
    """
    check_sizes(size, overlap)
    pieces = read_document(path, follow_link=follow_link, reader=reader, converter=converter)
    begin = 0
    # A record's location contains its number, so two consecutive records are two groups.
    for _, group in groupby(pieces, lambda piece: piece.location if piece.stands_alone else None):
        parts = list(group)
        texts = [piece.text for piece in parts]
        starts = list(accumulate(map(len, texts), initial=0))
        for cut in cut_into_chunks(texts, size=size, overlap=overlap, boundary=boundary):
            yield Chunk(begin + cut.start, cut.text, _find_location(cut, parts, starts))
        begin += starts[-1]


def _find_location(chunk: Chunk, pieces: list[Piece], starts: list[int]) -> Location:
    # The location is that of the words: a page break in the white space around them is ignored.
    if not chunk.text.strip():
        return {}
    first_char = chunk.end - len(chunk.text.lstrip())
    last_char = chunk.start + len(chunk.text.rstrip()) - 1
    first, last = (
        pieces[bisect_right(starts, place, hi=len(pieces)) - 1].location
        for place in (first_char, last_char)
    )
    changed = {f"last_{name}": value for name, value in last.items() if first.get(name) != value}
    return {**first, **changed}


__all__ = [
    "Chunk",
    "Converter",
    "Piece",
    "Reader",
    "cut_document",
    "find_documents",
    "format_file_counts",
    "read_document",
]
