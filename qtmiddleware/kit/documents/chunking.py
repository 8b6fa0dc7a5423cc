"""Split a document into overlapping chunks while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from qtmiddleware.config.kit_settings import ChunkBoundary
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.sentences import CLOSERS, compile_sentence_end

_LOOK_AHEAD: Final = 64
"""Characters after the longest possible chunk in a window, to see what follows a full stop."""
_LOOK_BACK: Final = 32
"""Characters before the earliest overlap, to see whether a sentence ends there."""
_AROUND: Final = 64
"""Characters read before a place to find out whether a grapheme cluster begins there."""
_TRIES: Final = 3
"""Boundaries of one kind that are tried.

A boundary is refused only if a combining mark belongs to the white space after it.
"""

_NEW_LINE: Final = r"(?:\r\n?+|[\n\x85\u2028])"
_PARAGRAPH: Final = rf"{_NEW_LINE}[ \t]*+{_NEW_LINE}|\u2029"
_CLAUSE: Final = r"[、，；：]++"
_ENDINGS: Final = ("sentence", "clause")
"""Kinds whose marks belong to the text before them. The other kinds are white space after it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A section of a document's text: ``document[start:end] == text``.

    Attributes:
        index: the chunk's number, from 0.
        start: the position of the chunk's first character in the document.
        end: the position after the chunk's last character.
        text: the chunk's text.
    """

    index: int
    start: int
    end: int
    text: str = field(repr=False)


def cut_into_chunks(
    pieces: Iterable[str], *, size: int, overlap: int, boundary: ChunkBoundary = "sentence"
) -> Iterator[Chunk]:
    """Split a document into chunks of at most *size* characters while the document is read.

    The chunks cover the whole document. Each chunk begins inside the previous chunk or right after
    it. The chunks do not depend on the lengths of *pieces*. Only one piece and a few chunks are in
    memory at once. A document of only white space has no chunks.

    With the boundary ``"sentence"``:

    - A chunk ends in the last third of *size*, at the best boundary there. The boundaries are, best
      first: the end of a paragraph that ends with a sentence, the end of a sentence, a paragraph
      (or heading), a line, a clause, a word. Among equally good boundaries, the last one is used.
      Without any boundary, the chunk ends at *size*, between two grapheme clusters if possible.
    - The next chunk begins with the first sentence or paragraph in the earlier half of the overlap,
      else with a word.
    - White space after a boundary belongs to the chunk before the boundary. If it does not fit
      there, it is split like text, and a chunk may contain only white space.

    With the boundary ``"character"``, the chunks are ``document[i : i + size]`` for each *i* of
    ``range(0, len(document), size - overlap)``. The last chunk may lie within the previous chunk.

    Args:
        pieces: the document's text, in pieces of any length.
        size: the maximum length of a chunk, in characters.
        overlap: the maximum number of characters that two consecutive chunks share.
        boundary: where chunks may end, ``"sentence"`` or ``"character"``.

    Raises:
        ConfigError: if *size* is below 1, or *overlap* is negative or not less than *size*.
    """
    if size < 1:
        raise ConfigError(
            f"chunkSize must be 1 or more, not {size}",
            path="chunkSize",
            value=size,
            allowed="1 or more",
        )
    if not 0 <= overlap < size:
        allowed = f"0 or more and less than chunkSize, which is {size}"
        raise ConfigError(
            f"chunkOverlap must be {allowed}, not {overlap}",
            path="chunkOverlap",
            value=overlap,
            allowed=allowed,
        )
    text = _TextWindow(_drop_if_blank(pieces))
    return (
        _cut_windows(text, size, overlap)
        if boundary == "character"
        else _cut_at_boundaries(text, size, overlap)
    )


class _TextWindow:
    """A document's text, read through a window that only moves forward."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._held = ""
        self._at = 0

    def read_window(self, start: int, length: int) -> str:
        """Return *length* characters from position *start*, or fewer at the end of the text.

        Text before *start* is dropped, and cannot be read again.
        """
        missing = start + length - self._at - len(self._held)
        new_pieces: list[str] = []
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            new_pieces.append(piece)
            missing -= len(piece)
        if new_pieces:
            self._held = "".join([self._held[start - self._at :], *new_pieces])
            self._at = start
        return self._held[start - self._at : start - self._at + length]


def _drop_if_blank(pieces: Iterable[str]) -> Iterator[str]:
    """Yield all *pieces*, or nothing if all of them contain only white space."""
    iterator = iter(pieces)
    blank: list[str] = []
    for piece in iterator:
        blank.append(piece)
        if piece and not piece.isspace():
            yield from blank
            blank.clear()
            yield from iterator


def _cut_windows(text: _TextWindow, size: int, overlap: int) -> Iterator[Chunk]:
    """Split *text* into chunks of *size* characters that share *overlap* characters.

    The last chunks may be shorter.
    """
    index = 0
    while window := text.read_window(start := index * (size - overlap), size):
        yield Chunk(index, start, start + len(window), window)
        index += 1


def _cut_at_boundaries(text: _TextWindow, size: int, overlap: int) -> Iterator[Chunk]:
    """Split *text* into chunks that end at boundaries, such as the ends of sentences."""
    index = start = shared = 0
    # Each chunk adds at least half of the new characters that it could. Otherwise tiny sentences
    # would make a chunk for every few characters.
    least_new = max(1, (size - overlap) // 2)
    while len(window := text.read_window(start, size + _LOOK_AHEAD)) > size:
        cut = _find_chunk_end(window, size, shared + least_new - 1)
        yield Chunk(index, start, start + cut, window[:cut])
        step = _find_next_start(window, cut, overlap)
        index, start, shared = index + 1, start + step, cut - step
    if window:
        yield Chunk(index, start, start + len(window), window)


@cache
def _compile_pattern(kind: str) -> Any:
    """Return the regular expression that finds boundaries of *kind*, such as ``"sentence"``."""
    import regex

    if kind == "sentence":
        return compile_sentence_end()
    patterns = {
        "prose": (
            rf"(?:{_PARAGRAPH})(?<=[\p{{Sentence_Terminal}}…:]{CLOSERS}{{0,2}}["
            rf" \t]{{0,2}}(?:{_PARAGRAPH}))"
        ),
        "paragraph": _PARAGRAPH,
        "line": _NEW_LINE,
        "clause": _CLAUSE,
        "word": r"\s++",
        "space": r"\s*+",
        "cluster": r"\X",
    }
    return regex.compile(patterns[kind], regex.VERSION1)


def _find_chunk_end(window: str, size: int, shortest: int) -> int:
    """Return the best position in *window* at which to end the chunk that begins at 0.

    The position is greater than *shortest* and at most *size*. *window* must contain `_LOOK_AHEAD`
    characters after *size*, or all remaining text. If white space follows a boundary, the chunk
    includes as much of it as fits.
    """
    longest = _find_limit(window, size, shortest)
    lowest = max(shortest, longest * 2 // 3)
    # From the best kind of boundary to the worst; of a kind, the last boundary that fits.
    for kind in ("prose", "sentence", "paragraph", "line", "clause", "word"):
        ends = [end for end in _find_ends(kind, window, lowest) if end <= longest]
        for end in reversed(ends[-_TRIES:]):
            cut = _skip_space(window, end, longest)
            # A cut before a combining mark would take the mark from its letter.
            if cut > lowest and _is_cluster_boundary(window, cut):
                return cut
    if _is_cluster_boundary(window, longest):
        return longest
    return max(
        (place for place in _find_clusters(window, longest) if shortest < place <= longest),
        default=longest,
    )


def _find_next_start(window: str, cut: int, overlap: int) -> int:
    """Return the position in *window* at which the next chunk begins; this chunk ends at *cut*.

    The position is at least 1, and at most *overlap* characters before *cut*. The next chunk begins
    with the first sentence or paragraph in the earlier half of the overlap, else with the first
    word there.
    """
    earliest = max(cut - overlap, 1)
    latest = cut - (cut - earliest) // 2
    for kinds in (("paragraph", "sentence"), ("clause", "word")):
        starts = [start for kind in kinds for start in _find_starts(kind, window, earliest, latest)]
        if starts:
            return min(starts)
    if _is_cluster_boundary(window, earliest):
        return earliest
    return min(
        (place for place in _find_clusters(window, earliest) if earliest <= place <= cut),
        default=cut,
    )


def _find_limit(window: str, size: int, shortest: int) -> int:
    """Return the maximum length of the chunk: *size*, or less near the end of the text.

    If only white space follows *size*, the limit is the start of the last word. The next chunk then
    begins with this word and is not blank.
    """
    if len(window) - size < _LOOK_AHEAD and window[size:].isspace():
        words = window[:size].rstrip()
        start = len(words) - len("".join(words.rsplit(None, 1)[-1:]))
        if start > shortest:
            return start
    return size


def _find_ends(kind: str, window: str, lowest: int) -> Iterator[int]:
    """Yield the positions after *lowest* at which text ends before a boundary of *kind*."""
    for boundary in _compile_pattern(kind).finditer(window, lowest):
        yield boundary.end() if kind in _ENDINGS else boundary.start()


def _find_starts(kind: str, window: str, earliest: int, latest: int) -> Iterator[int]:
    """Yield the first position from *earliest* to *latest* that follows a boundary of *kind*.

    Yields at most one position.
    """
    tried = 0
    for end in _find_ends(kind, window, max(0, earliest - _LOOK_BACK)):
        start = _skip_space(window, end, latest)
        if end > latest or tried == _TRIES:
            return
        if start >= earliest and not window[start].isspace():
            tried += 1
            if _is_cluster_boundary(window, start):
                yield start
                return


def _skip_space(window: str, end: int, limit: int) -> int:
    """Return the position after the white space that begins at *end* in *window*.

    The position is at most *limit*, and never splits a Windows line break.
    """
    place: int = min(_compile_pattern("space").match(window, end).end(), limit)
    return place - 1 if end < place and window[place - 1 : place + 1] == "\r\n" else place


def _is_cluster_boundary(window: str, place: int) -> bool:
    """Return whether *place*, a position in *window*, is between two grapheme clusters."""
    around = window[place - 1 : place + 1]
    return (around.isascii() and around != "\r\n") or place in _find_clusters(window, place)


def _find_clusters(window: str, place: int) -> list[int]:
    """Return the positions near *place* at which grapheme clusters begin in *window*."""
    begin = max(0, place - _AROUND)
    return [
        cluster.start()
        for cluster in _compile_pattern("cluster").finditer(window, begin, place + _LOOK_AHEAD)
    ]
