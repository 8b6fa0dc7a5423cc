"""Find documents, read them piece by piece, and split them into chunks.

Each chunk records its location in the document, such as the page number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.bounds import TextBound
from qtmiddleware.kit.documents.chunking import Chunk, cut_into_chunks
from qtmiddleware.kit.documents.converting import READERS, Converter
from qtmiddleware.kit.documents.finding import (
    count_unsupported_files_by_extension,
    find_documents,
    format_file_counts,
)
from qtmiddleware.kit.documents.own_reader import Reader, call_reader
from qtmiddleware.kit.documents.pdf import read_pdf
from qtmiddleware.kit.documents.text import Piece, read_text
from qtmiddleware.kit.files import open_regular_file

# The libraries read only the newer formats.
_OLD: Final = {".doc": ".docx", ".xls": ".xlsx", ".ppt": ".pptx"}


class NotTaken(UnreadableDocument):
    """Raised if neither the user's reader nor a built-in reader supports a file in a folder.

    If the user supplied no reader, this exception is not raised, and unsupported files are skipped.
    """


def read_document(
    path: Path,
    *,
    follow_link: bool = True,
    reader: Reader | None = None,
    converter: Converter | None = None,
    bound: TextBound | None = None,
) -> Iterator[Piece]:
    r"""Yield the text of the document at *path* in pieces, with few pieces in memory at once.

    Uses the first of these readers that supports the file:

    - *reader*, the user's own function;
    - the PDF reader, for PDF files;
    - *converter*, for the file extensions in `READERS`;
    - the text reader, for text in UTF-8, or in UTF-16 with a byte order mark.

    In text files, byte order marks are dropped, and every line break becomes ``\n``. Otherwise the
    text is not changed, so Markdown keeps its front matter.

    Args:
        path: the path of the document.
        follow_link: whether to follow a symbolic link; if false, a link raises an error.
        reader: the user's own reader, if any.
        converter: the converter to use. By default, one is started for this file only.
        bound: the limit for the total text of all documents in a run. Text from *reader* is not
            limited.

    Raises:
        UnreadableDocument: if the reader fails, possibly after some pieces.
        MissingExtra: if a package for this file type is not installed.
    """
    own_pieces = None if reader is None else call_reader(reader, path)
    if own_pieces is not None:
        yield from own_pieces
        return
    extension = path.suffix.casefold()
    if extension in _OLD:
        raise UnreadableDocument(
            path, "an old Office format", f"save it as {_OLD[extension]} first"
        )
    bound = bound or TextBound()
    try:
        if extension in READERS:
            with nullcontext(converter) if converter is not None else Converter() as open_converter:
                yield from bound.limit_text(
                    path, open_converter.read_pieces(path, follow_link=follow_link)
                )
            return
        with open_regular_file(path, follow_link=follow_link) as file:
            yield from bound.limit_text(
                path, (read_pdf if extension == ".pdf" else read_text)(path, file)
            )
    except (OSError, ValueError) as error:
        raise UnreadableDocument(
            path, "cannot be opened", getattr(error, "strerror", None) or ""
        ) from error


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """A chunk and its location in the document, such as a page.

    Attributes:
        chunk: the chunk's text, and its position in the document.
        location: the location of the chunk's first word, such as ``{"page": 3}``. If the chunk ends
            at another location, the values that differ are added, such as ``{"last_page": 4}``.
    """

    chunk: Chunk
    location: Mapping[str, str | int | float] = field(default_factory=dict)


def cut_document(
    path: Path,
    *,
    size: int,
    overlap: int,
    boundary: ChunkBoundary = "sentence",
    follow_link: bool = True,
    reader: Reader | None = None,
    converter: Converter | None = None,
    bound: TextBound | None = None,
) -> Iterator[DocumentChunk]:
    """Yield the chunks of the document at *path* while the document is read.

    See `cut_into_chunks` for *size*, *overlap* and *boundary*, and `read_document` for the other
    parameters. A chunk of only white space has an empty location.

    Raises:
        ConfigError: at the call, if *size* or *overlap* is invalid.
        UnreadableDocument: while reading, possibly after the last chunk.
        MissingExtra: while reading, if a package for this file type is not installed.
    """
    pieces = read_document(
        path, follow_link=follow_link, reader=reader, converter=converter, bound=bound
    )
    cut_texts = partial(cut_into_chunks, size=size, overlap=overlap, boundary=boundary)
    cut_texts(())  # Raises now for invalid sizes, not at the first chunk.
    return _cut_pieces(pieces, cut_texts)


def _cut_pieces(
    pieces: Iterator[Piece], cut_texts: Callable[[Iterable[str]], Iterator[Chunk]]
) -> Iterator[DocumentChunk]:
    """Join the texts of *pieces*, split the result with *cut_texts*, and yield the chunks.

    The text of a record (a piece with ``stands_alone``) is not joined with other texts.
    """
    index = start = 0
    # A record's location contains its number, so two consecutive records are two groups.
    for _, group in groupby(pieces, lambda piece: piece.location if piece.stands_alone else None):
        finder, chunk = _LocationFinder(group), Chunk(index - 1, start, start, "")
        for chunk_of_group in cut_texts(finder.read_texts()):
            chunk = Chunk(
                index + chunk_of_group.index,
                start + chunk_of_group.start,
                start + chunk_of_group.end,
                chunk_of_group.text,
            )
            yield DocumentChunk(chunk, finder.find_location(chunk_of_group))
        index, start = chunk.index + 1, chunk.end


class _LocationFinder:
    """Finds the location of each chunk, such as its page, while the document is read."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._location_starts: deque[tuple[int, Mapping[str, str | int | float]]] = deque()

    def read_texts(self) -> Iterator[str]:
        """Yield the text of each piece, and record where each page, row or heading begins."""
        position = 0
        for piece in self._pieces:
            if not self._location_starts or self._location_starts[-1][1] != piece.location:
                self._location_starts.append((position, piece.location))
            position += len(piece.text)
            yield piece.text

    def find_location(self, chunk: Chunk) -> Mapping[str, str | int | float]:
        """Return the location of the first word of *chunk*, such as ``{"page": 3}``.

        If the chunk ends at another location, the values that differ are added, such as
        ``{"last_page": 4}``. Call this method for the chunks in document order.
        """
        # The location is that of the words: a page break in the white space around them is ignored.
        first_char = chunk.start + len(chunk.text) - len(chunk.text.lstrip())
        last_char = chunk.start + len(chunk.text.rstrip()) - 1
        # Later chunks begin here or after, so earlier locations are not needed any more.
        while len(self._location_starts) > 1 and self._location_starts[1][0] <= chunk.start:
            self._location_starts.popleft()
        if first_char > last_char:
            return {}
        locations = [location for begin, location in self._location_starts if begin <= last_char]
        later_locations = [
            location for begin, location in self._location_starts if first_char < begin <= last_char
        ]
        first_location, last_location = locations[-len(later_locations) - 1], locations[-1]
        return {
            **first_location,
            **{
                f"last_{name}": value
                for name, value in last_location.items()
                if first_location.get(name) != value
            },
        }


__all__ = [
    "Converter",
    "DocumentChunk",
    "NotTaken",
    "Piece",
    "Reader",
    "TextBound",
    "count_unsupported_files_by_extension",
    "cut_document",
    "find_documents",
    "format_file_counts",
    "read_document",
]
