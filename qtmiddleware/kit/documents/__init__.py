"""Find documents, read them, and split them into chunks.

Each chunk records its location in the document, such as the page number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Final

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.chunking import Chunk, check_sizes, cut_into_chunks
from qtmiddleware.kit.documents.converting import READERS, Converter
from qtmiddleware.kit.documents.finding import (
    count_unsupported_files_by_extension,
    find_documents,
    format_file_counts,
)
from qtmiddleware.kit.documents.records import RECORD_READERS
from qtmiddleware.kit.documents.text import (
    Location,
    Piece,
    Reader,
    call_reader,
    check_size,
    limit_text,
    read_text,
)
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
) -> list[Piece]:
    r"""Return the text of the document at *path*, in pieces such as pages or paragraphs.

    Uses the first of these readers that supports the file:

    - *reader*, the user's own function, whose text has no limit;
    - *converter*, for the file extensions in `READERS`;
    - the readers of tables and JSON;
    - the text reader, for text in UTF-8, or in UTF-16 with a byte order mark.

    In text files, byte order marks are dropped, and every line break becomes ``\n``. Otherwise the
    text is not changed, so Markdown keeps its front matter.

    Args:
        path: the path of the document.
        follow_link: whether to follow a symbolic link; if false, a link raises an error.
        reader: the user's own reader, if any.
        converter: the converter to use. By default, one is started for this file only.

    Raises:
        UnreadableDocument: if the document cannot be read, or is too large.
        MissingExtra: if a package for this file type is not installed.
    """
    own_pieces = None if reader is None else call_reader(reader, path)
    if own_pieces is not None:
        return own_pieces
    extension = path.suffix.casefold()
    if extension in _OLD:
        raise UnreadableDocument(
            path, "an old Office format", f"save it as {_OLD[extension]} first"
        )
    try:
        if extension in READERS:
            with nullcontext(converter) if converter is not None else Converter() as opened:
                return opened.read(path, follow_link=follow_link)
        with open_regular_file(path, follow_link=follow_link) as file:
            size = check_size(path, file)
            text = read_text(path, file)
            if extension not in RECORD_READERS:
                return [Piece(text)]
            return limit_text(path, RECORD_READERS[extension](path, text), size)
    except RecursionError:
        raise UnreadableDocument(path, "damaged", "it is nested too deeply") from None
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
    location: Location = field(default_factory=dict)


def cut_document(
    path: Path,
    *,
    size: int,
    overlap: int,
    boundary: ChunkBoundary = "sentence",
    follow_link: bool = True,
    reader: Reader | None = None,
    converter: Converter | None = None,
) -> Iterator[DocumentChunk]:
    """Yield the chunks of the document at *path*.

    See `cut_into_chunks` for *size*, *overlap* and *boundary*, and `read_document` for the other
    parameters and errors. A chunk of only white space has an empty location. The text of a record
    (a piece with ``stands_alone``) shares no chunk with other texts.
    """
    # Raises now for invalid sizes, not at the first chunk.
    check_sizes(size, overlap)
    return _cut_pieces(
        lambda: read_document(path, follow_link=follow_link, reader=reader, converter=converter),
        partial(cut_into_chunks, size=size, overlap=overlap, boundary=boundary),
    )


def _cut_pieces(
    read: Callable[[], list[Piece]], cut_texts: Callable[[Iterable[str]], Iterator[Chunk]]
) -> Iterator[DocumentChunk]:
    index = start = 0
    # A record's location contains its number, so two consecutive records are two groups.
    for _, group in groupby(read(), lambda piece: piece.location if piece.stands_alone else None):
        parts = list(group)
        starts = list(accumulate((len(piece.text) for piece in parts), initial=0))
        for cut in cut_texts(piece.text for piece in parts):
            chunk = Chunk(index, start + cut.start, start + cut.end, cut.text)
            yield DocumentChunk(chunk, _find_location(cut, parts, starts))
            index += 1
        start += starts[-1]


def _find_location(chunk: Chunk, pieces: list[Piece], starts: list[int]) -> Location:
    """Return the location of *chunk*, which is a part of *pieces* that begin at *starts*."""
    # The location is that of the words: a page break in the white space around them is ignored.
    first_char = chunk.start + len(chunk.text) - len(chunk.text.lstrip())
    last_char = chunk.start + len(chunk.text.rstrip()) - 1
    if first_char > last_char:
        return {}
    first = pieces[bisect_right(starts, first_char, hi=len(pieces)) - 1].location
    last = pieces[bisect_right(starts, last_char, hi=len(pieces)) - 1].location
    changed = {f"last_{name}": value for name, value in last.items() if first.get(name) != value}
    return {**first, **changed}


__all__ = [
    "Converter",
    "DocumentChunk",
    "NotTaken",
    "Piece",
    "Reader",
    "count_unsupported_files_by_extension",
    "cut_document",
    "find_documents",
    "format_file_counts",
    "read_document",
]
