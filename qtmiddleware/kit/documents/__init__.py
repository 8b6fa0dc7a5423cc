"""Documents: finding them, reading them piece by piece, and cutting them into chunks that know their place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from qtmiddleware.config.kit_settings import ChunkBoundary
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.bounds import TextBound
from qtmiddleware.kit.documents.chunking import Chunk, cut_into_chunks
from qtmiddleware.kit.documents.converting import READERS, Converter
from qtmiddleware.kit.documents.finding import (
    count_left_out,
    describe_left_out,
    find_documents,
    has_own_reader,
)
from qtmiddleware.kit.documents.own_reader import Reader, ask_reader
from qtmiddleware.kit.documents.pdf import read_pdf
from qtmiddleware.kit.documents.text import Piece, read_text
from qtmiddleware.runtime.files import open_document

_OLD: Final = {".doc": ".docx", ".xls": ".xlsx", ".ppt": ".pptx"}


class NotTaken(UnreadableDocument):
    """A file of a folder that is shown to a user's reader alone, and that it does not read."""


def read_document(
    path: Path,
    *,
    follow_link: bool = True,
    reader: Reader | None = None,
    converter: Converter | None = None,
    bound: TextBound | None = None,
) -> Iterator[Piece]:
    r"""The text of the document at *path*, piece by piece, of which no more is held than a few.

    *reader* is asked first. ``.pdf`` is read page by page. *converter*, or one of this file alone,
    reads the endings of `READERS` and those that installed packages read. Everything else is read
    as text in UTF-8, or in UTF-16 with a byte order mark. Byte order marks are dropped and every
    kind of line end becomes ``\n``; Markdown stays as it is written, with its front matter, as does
    reStructuredText.
    *bound* is shared by the documents of one run; what *reader* gives is not bounded.

    Raises `UnreadableDocument`, at the first piece or at any later one, whatever a reader raises,
    and `MissingExtra` for a file whose packages are not installed.
    """
    own = None if reader is None else ask_reader(reader, path)
    if own is not None:
        yield from own
        return
    ending = path.suffix.casefold()
    is_own = has_own_reader(path)
    if ending in _OLD and not is_own:
        raise UnreadableDocument(path, "an old Office format", f"save it as {_OLD[ending]} first")
    bound = bound or TextBound()
    try:
        if ending in READERS or is_own:
            with nullcontext(converter) if converter is not None else Converter() as reading:
                yield from bound.limit(path, reading.read(path, follow_link=follow_link))
            return
        with open_document(path, follow_link=follow_link) as file:
            yield from bound.limit(path, (read_pdf if ending == ".pdf" else read_text)(path, file))
    except (OSError, ValueError) as error:
        raise UnreadableDocument(
            path, "cannot be opened", getattr(error, "strerror", None) or ""
        ) from error


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """A chunk and where its words stand: the place of the first, and of the last what differs, as ``last_page``."""

    chunk: Chunk
    place: Mapping[str, str | int | float] = field(default_factory=dict)


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
    """The chunks of the document at *path*, while it is read; see `cut_into_chunks` and `read_document` for how.

    A chunk of nothing but white space, which long runs of it make, has no place. Raises
    `ConfigError` at once, and `UnreadableDocument` or `MissingExtra` while reading, also behind the
    last chunk.
    """
    pieces = read_document(
        path, follow_link=follow_link, reader=reader, converter=converter, bound=bound
    )
    cut = partial(cut_into_chunks, size=size, overlap=overlap, boundary=boundary)
    cut(())  # raises for impossible sizes
    return _cut_texts(pieces, cut)


def _cut_texts(
    pieces: Iterator[Piece], cut: Callable[[Iterable[str]], Iterator[Chunk]]
) -> Iterator[DocumentChunk]:
    """The chunks of the texts that *pieces* make up: all of them one, but those that stand alone."""
    index = at = 0
    for _, text in groupby(pieces, lambda it: it.place if it.stands_alone else None):
        places, chunk = _Places(text), Chunk(index - 1, at, at, "")
        for found in cut(places.texts()):
            chunk = Chunk(index + found.index, at + found.start, at + found.end, found.text)
            yield DocumentChunk(chunk, places.find(found))
        index, at = chunk.index + 1, chunk.end


class _Places:
    """Remembers where the places begin that chunks may still stand on."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._begins: deque[tuple[int, Mapping[str, str | int | float]]] = deque()

    def texts(self) -> Iterator[str]:
        """The texts of the pieces, as they are asked for."""
        at = 0
        for piece in self._pieces:
            if not self._begins or self._begins[-1][1] != piece.place:
                self._begins.append((at, piece.place))
            at += len(piece.text)
            yield piece.text

    def find(self, chunk: Chunk) -> Mapping[str, str | int | float]:
        """The place of *chunk*; chunks are asked for in order."""
        first = chunk.start + len(chunk.text) - len(chunk.text.lstrip())
        last = chunk.start + len(chunk.text.rstrip()) - 1
        while len(self._begins) > 1 and self._begins[1][0] <= chunk.start:
            self._begins.popleft()
        if first > last:
            return {}
        on = [place for begin, place in self._begins if begin <= last]
        later = [place for begin, place in self._begins if first < begin <= last]
        begins, ends = on[-len(later) - 1], on[-1]
        return {
            **begins,
            **{f"last_{name}": value for name, value in ends.items() if begins.get(name) != value},
        }


__all__ = [
    "Converter", "DocumentChunk", "NotTaken", "Piece", "Reader", "TextBound", "count_left_out", "cut_document",
    "describe_left_out", "find_documents", "read_document",
]  # fmt: skip
