"""Documents: finding them, reading them piece by piece, and cutting them into chunks that know their pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.rag.chunking import Chunk, cut_into_chunks
from qtmiddleware.rag.documents.finding import count_left_out, describe_left_out, find_documents
from qtmiddleware.rag.documents.pdf import read_pdf
from qtmiddleware.rag.documents.text import Piece, read_text
from qtmiddleware.runtime.files import open_document

_HTML: Final = frozenset((".html", ".htm", ".xhtml"))
_HTML_ADVICE: Final = "its tags would be searched; save it as text or Markdown first, as pandoc -t plain does"


def read_document(path: Path, *, follow_link: bool = True) -> Iterator[Piece]:
    r"""The text of the document at *path*, piece by piece, of which no more is held than one.

    ``.pdf`` is read page by page, with page numbers, HTML is refused, and everything else is read as text in UTF-8, or
    in UTF-16 with a byte order mark. Byte order marks are dropped and every kind of line end becomes ``\n``; Markdown
    stays as it is written, with its front matter, as do reStructuredText, CSV and JSON.

    Raises `UnreadableDocument`, at the first piece or at any later one, and `MissingExtra` for a PDF without pypdf.
    """
    if path.suffix.casefold() in _HTML:
        raise UnreadableDocument(path, "HTML", _HTML_ADVICE)
    try:
        with open_document(path, follow_link=follow_link) as file:
            read = read_pdf if path.suffix.casefold() == ".pdf" else read_text
            yield from read(path, file)
    except (OSError, ValueError) as error:
        raise UnreadableDocument(path, "cannot be opened", getattr(error, "strerror", None) or "") from error


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """A chunk with the first and the last page its words stand on, from 1; ``None`` where there are no pages."""

    chunk: Chunk
    page: int | None = None
    last_page: int | None = None


def cut_document(
    path: Path, *, size: int, overlap: int, boundary: ChunkBoundary = "sentence", follow_link: bool = True
) -> Iterator[DocumentChunk]:
    """The chunks of the document at *path*, while it is read; see `cut_into_chunks` and `read_document` for how.

    A chunk of nothing but white space, which long runs of it make, has no pages.
    Raises `ConfigError` at once, and `UnreadableDocument` or `MissingExtra` while reading, also behind the last chunk.
    """
    pages = _Pages(read_document(path, follow_link=follow_link))
    cut = cut_into_chunks(pages.texts(), size=size, overlap=overlap, boundary=boundary)
    return (DocumentChunk(chunk, *pages.find(chunk)) for chunk in cut)


class _Pages:
    """Remembers where the pages begin that chunks may still stand on."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._begins: deque[tuple[int, int | None]] = deque()

    def texts(self) -> Iterator[str]:
        """The texts of the pieces, as they are asked for."""
        at = 0
        for piece in self._pieces:
            if not self._begins or self._begins[-1][1] != piece.page:
                self._begins.append((at, piece.page))
            at += len(piece.text)
            yield piece.text

    def find(self, chunk: Chunk) -> tuple[int | None, int | None]:
        """The first and last page of *chunk*; chunks are asked for in order."""
        first = chunk.start + len(chunk.text) - len(chunk.text.lstrip())
        last = chunk.start + len(chunk.text.rstrip()) - 1
        while len(self._begins) > 1 and self._begins[1][0] <= chunk.start:
            self._begins.popleft()
        if first > last:
            return None, None
        on = [page for begin, page in self._begins if begin <= last]
        later = [page for begin, page in self._begins if first < begin <= last]
        return (on[-len(later) - 1], on[-1])


__all__ = [
    "DocumentChunk", "Piece", "count_left_out", "cut_document", "describe_left_out", "find_documents", "read_document",
]  # fmt: skip
