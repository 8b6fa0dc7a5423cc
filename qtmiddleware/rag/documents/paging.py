"""The chunks of a document, each with the pages it stands on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.rag.chunking import Chunk, chunks
from qtmiddleware.rag.documents.piece import Piece
from qtmiddleware.rag.documents.reading import read_document


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """A chunk with the first and the last page its words stand on, from 1; ``None`` where there are no pages."""

    chunk: Chunk
    page: int | None = None
    last_page: int | None = None


def document_chunks(
    path: Path, *, size: int, overlap: int, boundary: ChunkBoundary = "sentence", follow_link: bool = True
) -> Iterator[DocumentChunk]:
    """The chunks of the document at *path*, while it is read; see `chunks` and `read_document` for how.

    A chunk of nothing but white space, which long runs of it make, has no pages.
    Raises `ConfigError` at once, and `UnreadableDocument` or `MissingExtra` while reading, also behind the last chunk.
    """
    pages = _Pages(read_document(path, follow_link=follow_link))
    cut = chunks(pages.texts(), size=size, overlap=overlap, boundary=boundary)
    return (DocumentChunk(chunk, *pages.of(chunk)) for chunk in cut)


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

    def of(self, chunk: Chunk) -> tuple[int | None, int | None]:
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
