"""Split a document into overlapping chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.kit.documents.pieces import Location
from qtmiddleware.preprocessing.sentences import compile_sentence_end_pattern

# How many characters to read around a position, to see what ends or begins there.
_AROUND: Final = 64
_BOUNDARIES: Final = {
    "paragraph": r"\n[ \t]*+\n",
    "line": r"\n",
    "word": r"\s++",
    "character": r"\X",
}
_SPACE: Final = r"\s*+"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A section of a document's text: ``document[start : start + len(text)] == text``.

    Attributes:
        start: the position of the chunk's first character in the document.
        text: the chunk's text.
        location: the location of the chunk's first word, such as ``{"page": 3}``, and the values of
            the last word that differ, such as ``{"last_page": 4}``.
    """

    start: int
    text: str = field(repr=False)
    location: Location = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The position after the chunk's last character."""
        return self.start + len(self.text)


def cut_into_chunks(
    pieces: Iterable[str], *, size: int, overlap: int, boundary: ChunkBoundary = "sentence"
) -> Iterator[Chunk]:
    """Split a document into chunks of at most *size* characters.

    The chunks cover the whole document, whatever the lengths of *pieces*. Two consecutive chunks
    share at most *overlap* characters. A document of only white space has no chunks.

    With the boundary ``"sentence"``, a chunk ends in the last third of *size*, at the last of the
    best boundaries there: the end of a paragraph, a sentence, a line or a word. The next chunk
    begins with a paragraph or sentence in the earlier half of the overlap, or else with a word.
    White space belongs to the chunk before it.

    With the boundary ``"character"``, the chunks are ``document[i : i + size]`` for each *i* of
    ``range(0, len(document), size - overlap)``. *overlap* must be less than *size*.
    """
    text = "".join(pieces)
    if not text.strip():
        return
    if boundary == "character":
        for start in range(0, len(text), size - overlap):
            yield Chunk(start, text[start : start + size])
        return
    start = shared_chars = 0
    # Each chunk has at least half of the new characters that fit. Otherwise very short sentences
    # would produce a chunk for every few characters.
    min_new_chars = max(1, (size - overlap) // 2)
    while len(window := text[start : start + size + _AROUND]) > size:
        end = _find_chunk_end(window, size, shared_chars + min_new_chars - 1)
        yield Chunk(start, window[:end])
        step = _find_next_start(window, end, overlap)
        start, shared_chars = start + step, end - step
    if window:
        yield Chunk(start, window)


@cache
def _compile(pattern: str) -> Any:
    import regex

    return regex.compile(pattern)


def _find_chunk_end(window: str, size: int, lower_bound: int) -> int:
    """Return the best end, above *lower_bound*, of the chunk at the start of *window*."""
    lowest = max(lower_bound, size * 2 // 3)
    for kind in ("paragraph", "sentence", "line", "word"):
        found = _find_text_ends(kind, window, lowest)
        ends = [end for end in found if lowest < end <= size]
        if ends:
            return min(_skip_white_space(window, ends[-1]), size)
    # Without any boundary, the chunk ends as late as possible, but not within a character.
    found = _find_text_ends("character", window, 0)
    return max((end for end in found if lower_bound < end <= size), default=size)


def _find_next_start(window: str, chunk_end: int, overlap: int) -> int:
    """Return the position in *window* at which the next chunk begins."""
    earliest = max(chunk_end - overlap, 1)
    # In the later half, the two chunks would share little text.
    latest = chunk_end - (chunk_end - earliest) // 2
    for kind in ("paragraph", "sentence", "word"):
        for end in _find_text_ends(kind, window, max(0, earliest - _AROUND)):
            start = _skip_white_space(window, end)
            if start > latest:
                break
            if start >= earliest:
                return start
    # Without any boundary, the overlap is as long as possible.
    starts = _find_text_ends("character", window, 0)
    return next((start for start in starts if earliest <= start <= chunk_end), chunk_end)


def _find_text_ends(kind: str, window: str, start: int) -> Iterator[int]:
    """Yield the position after the text before each boundary of *kind*."""
    if kind == "sentence":
        for sentence_end in compile_sentence_end_pattern().finditer(window, start):
            yield sentence_end.end()
        return
    for boundary in _compile(_BOUNDARIES[kind]).finditer(window, start):
        yield boundary.start()


def _skip_white_space(window: str, start: int) -> int:
    end: int = _compile(_SPACE).match(window, start).end()
    return end
