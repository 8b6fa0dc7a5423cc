"""Cutting a document into chunks that overlap, while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.errors import ConfigError
from qtmiddleware.rag.chunking.boundaries import LOOK_AHEAD, end_of_chunk, start_of_next

__all__ = ["Chunk", "chunks"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a document: ``document[start:end] == text``, in characters; *index* counts from 0."""

    index: int
    start: int
    end: int
    text: str = field(repr=False)


def chunks(pieces: Iterable[str], *, size: int, overlap: int, boundary: ChunkBoundary = "sentence") -> Iterator[Chunk]:
    """Cut the document that *pieces* make up into chunks of *size* characters at most, while it is read.

    The first begins at 0, the last ends at the document's end, each begins within or right behind the one before it
    and shares at most *overlap* characters with it, so that they rejoin to the document exactly. How the document was
    cut into pieces makes no difference; no more of it is held than a piece and a few chunks, and the white space
    before its first word. A document of nothing but white space has no chunks.

    ``"sentence"``: a chunk ends in the last third of *size*, at the last paragraph that ends with a sentence, else
    at the last sentence, else the last paragraph (or heading), line, clause or word, else at *size*, between two
    grapheme clusters where that can be. The next one begins with the first sentence or paragraph in the earlier half of
    the overlap, else with a word. White space behind a boundary stays with the chunk before it; a chunk of nothing but
    white space comes only of white space longer than fits there, which is cut like text.

    ``"character"``: exactly the windows ``document[i : i + size]`` for each *i* of ``range(0, len(document), size -
    overlap)``. The last one may lie wholly within the one before it; it is kept, as is one of white space.

    Raises `ConfigError` when *overlap* is not less than *size*, or either is impossible.
    """
    if size < 1:
        raise ConfigError(f"chunkSize is {size}; allowed: 1 or more", path="chunkSize", value=size, allowed="1 or more")
    if not 0 <= overlap < size:
        allowed = f"0 or more and less than chunkSize, which is {size}"
        raise ConfigError(
            f"chunkOverlap is {overlap}; allowed: {allowed}", path="chunkOverlap", value=overlap, allowed=allowed
        )
    text = _Text(_from_first_word(pieces))
    return _windows(text, size, overlap) if boundary == "character" else _sentences(text, size, overlap)


class _Text:
    """The text that pieces make up, seen through windows that only move on."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._held = ""
        self._at = 0

    def window(self, start: int, length: int) -> str:
        """*length* characters from *start*; fewer only at the end of the text."""
        missing = start + length - self._at - len(self._held)
        new: list[str] = []
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            new.append(piece)
            missing -= len(piece)
        if new:
            self._held = "".join([self._held[start - self._at :], *new])
            self._at = start
        return self._held[start - self._at : start - self._at + length]


def _from_first_word(pieces: Iterable[str]) -> Iterator[str]:
    """All *pieces*, or none where they hold nothing but white space."""
    rest = iter(pieces)
    blank: list[str] = []
    for piece in rest:
        blank.append(piece)
        if piece and not piece.isspace():
            yield from blank
            blank.clear()
            yield from rest


def _windows(text: _Text, size: int, overlap: int) -> Iterator[Chunk]:
    index = 0
    while window := text.window(start := index * (size - overlap), size):
        yield Chunk(index, start, start + len(window), window)
        index += 1


def _sentences(text: _Text, size: int, overlap: int) -> Iterator[Chunk]:
    index = start = shared = 0
    # Each chunk brings at least half of what it could, or tiny sentences would make a chunk for every few characters.
    fresh = max(1, (size - overlap) // 2)
    while len(window := text.window(start, size + LOOK_AHEAD)) > size:
        cut = end_of_chunk(window, size, shared + fresh - 1)
        yield Chunk(index, start, start + cut, window[:cut])
        step = start_of_next(window, cut, overlap)
        index, start, shared = index + 1, start + step, cut - step
    if window:
        yield Chunk(index, start, start + len(window), window)
