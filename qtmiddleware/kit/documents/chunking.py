"""Cutting a document into chunks that overlap, while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from qtmiddleware.config.kit_settings import ChunkBoundary
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.sentences import CLOSERS, compile_sentence_end

_LOOK_AHEAD: Final = 64
"""Characters behind the longest possible chunk that a window holds, to see what follows a full stop."""
_LOOK_BACK: Final = 32
"""Characters before the place where the overlap may begin, to see whether a sentence ends there."""
_AROUND: Final = 64
"""Characters read before a place to tell whether a grapheme cluster begins there."""
_TRIES: Final = 3
"""Boundaries of a kind that are tried; one is refused only where a mark hangs on the white space behind it."""

_NEW_LINE: Final = r"(?:\r\n?+|[\n\x85\u2028])"
_PARAGRAPH: Final = rf"{_NEW_LINE}[ \t]*+{_NEW_LINE}|\u2029"
_CLAUSE: Final = r"[、，；：]++"
_ENDINGS: Final = ("sentence", "clause")
"""Boundaries whose marks belong to what they end; the others are white space behind it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a document: ``document[start:end] == text``, in characters; *index* counts from 0."""

    index: int
    start: int
    end: int
    text: str = field(repr=False)


def cut_into_chunks(
    pieces: Iterable[str], *, size: int, overlap: int, boundary: ChunkBoundary = "sentence"
) -> Iterator[Chunk]:
    """Cut the document that *pieces* make up into chunks of *size* characters at most, while it is read.

    The first begins at 0, the last ends at the document's end, each begins within or right behind
    the one before it and shares at most *overlap* characters with it, so that they rejoin to the
    document exactly. How the document was cut into pieces makes no difference; no more of it is
    held than a piece and a few chunks, and the white space before its first word. A document of
    nothing but white space has no chunks.

    ``"sentence"``: a chunk ends in the last third of *size*, at the last paragraph that ends with a
    sentence, else at the last sentence, else the last paragraph (or heading), line, clause or word,
    else at *size*, between two grapheme clusters where that can be. The next one begins with the
    first sentence or paragraph in the earlier half of the overlap, else with a word. White space
    behind a boundary stays with the chunk before it; a chunk of nothing but white space comes only
    of white space longer than fits there, which is cut like text.

    ``"character"``: exactly the windows ``document[i : i + size]`` for each *i* of ``range(0,
    len(document), size - overlap)``. The last one may lie wholly within the one before it; it is
    kept, as is one of white space.

    Raises `ConfigError` when *overlap* is not less than *size*, or either is impossible.
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
    text = _Text(_drop_if_blank(pieces))
    return (
        _cut_windows(text, size, overlap)
        if boundary == "character"
        else _cut_at_boundaries(text, size, overlap)
    )


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


def _drop_if_blank(pieces: Iterable[str]) -> Iterator[str]:
    """All *pieces*, or none where they hold nothing but white space."""
    rest = iter(pieces)
    blank: list[str] = []
    for piece in rest:
        blank.append(piece)
        if piece and not piece.isspace():
            yield from blank
            blank.clear()
            yield from rest


def _cut_windows(text: _Text, size: int, overlap: int) -> Iterator[Chunk]:
    index = 0
    while window := text.window(start := index * (size - overlap), size):
        yield Chunk(index, start, start + len(window), window)
        index += 1


def _cut_at_boundaries(text: _Text, size: int, overlap: int) -> Iterator[Chunk]:
    index = start = shared = 0
    # Each chunk brings at least half of what it could, or tiny sentences would make a chunk for
    # every few characters.
    fresh = max(1, (size - overlap) // 2)
    while len(window := text.window(start, size + _LOOK_AHEAD)) > size:
        cut = _find_chunk_end(window, size, shared + fresh - 1)
        yield Chunk(index, start, start + cut, window[:cut])
        step = _find_next_start(window, cut, overlap)
        index, start, shared = index + 1, start + step, cut - step
    if window:
        yield Chunk(index, start, start + len(window), window)


@cache
def _compile_pattern(kind: str) -> Any:
    """The pattern of a kind of boundary."""
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
    """Where the chunk that begins *window* ends: behind *shortest* characters, and at *size* at the latest.

    *window* holds more than *size* characters: the text to `_LOOK_AHEAD` behind them, or to its
    end. White space behind a boundary belongs to the chunk before it as far as it fits.
    """
    longest = _find_limit(window, size, shortest)
    lowest = max(shortest, longest * 2 // 3)
    for kind in ("prose", "sentence", "paragraph", "line", "clause", "word"):
        ends = [end for end in _find_ends(kind, window, lowest) if end <= longest]
        for end in reversed(ends[-_TRIES:]):
            cut = _skip_space(window, end, longest)
            if cut > lowest and _is_whole(window, cut):
                return cut
    if _is_whole(window, longest):
        return longest
    return max(
        (it for it in _find_clusters(window, longest) if shortest < it <= longest), default=longest
    )


def _find_next_start(window: str, cut: int, overlap: int) -> int:
    """Where the chunk after the one that ends at *cut* begins: *overlap* characters before it at most, 1 at least.

    At the first sentence that begins in the earlier half of the overlap, else at the first word
    there.
    """
    first = max(cut - overlap, 1)
    last = cut - (cut - first) // 2
    for kinds in (("paragraph", "sentence"), ("clause", "word")):
        starts = [it for kind in kinds for it in _find_starts(kind, window, first, last)]
        if starts:
            return min(starts)
    if _is_whole(window, first):
        return first
    return min((it for it in _find_clusters(window, first) if first <= it <= cut), default=cut)


def _find_limit(window: str, size: int, shortest: int) -> int:
    """*size*; where only white space is left behind that, the last word's start: a chunk of it alone would be empty."""
    if len(window) - size < _LOOK_AHEAD and window[size:].isspace():
        words = window[:size].rstrip()
        start = len(words) - len("".join(words.rsplit(None, 1)[-1:]))
        if start > shortest:
            return start
    return size


def _find_ends(kind: str, window: str, lowest: int) -> Iterator[int]:
    """Where what stands before each boundary behind *lowest* ends, in order."""
    for found in _compile_pattern(kind).finditer(window, lowest):
        yield found.end() if kind in _ENDINGS else found.start()


def _find_starts(kind: str, window: str, first: int, last: int) -> Iterator[int]:
    """The first place from *first* to *last* where something begins behind a boundary, if there is one."""
    tried = 0
    for end in _find_ends(kind, window, max(0, first - _LOOK_BACK)):
        start = _skip_space(window, end, last)
        if end > last or tried == _TRIES:
            return
        if start >= first and not window[start].isspace():
            tried += 1
            if _is_whole(window, start):
                yield start
                return


def _skip_space(window: str, end: int, limit: int) -> int:
    """The place behind the white space that begins at *end*, not behind *limit*."""
    place: int = min(_compile_pattern("space").match(window, end).end(), limit)
    return place - 1 if end < place and window[place - 1 : place + 1] == "\r\n" else place


def _is_whole(window: str, place: int) -> bool:
    """Whether *place* lies between two grapheme clusters."""
    around = window[place - 1 : place + 1]
    return (around.isascii() and around != "\r\n") or place in _find_clusters(window, place)


def _find_clusters(window: str, place: int) -> list[int]:
    """Where the grapheme clusters around *place* begin."""
    begin = max(0, place - _AROUND)
    return [
        it.start()
        for it in _compile_pattern("cluster").finditer(window, begin, place + _LOOK_AHEAD)
    ]
