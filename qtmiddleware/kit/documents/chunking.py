"""Split a document into overlapping chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.sentences import CLOSERS, compile_sentence_end_pattern

_LOOK_AHEAD: Final = 64
"""How many characters to read after the longest possible chunk, to see what follows a full stop."""
_LOOK_BACK: Final = 32
"""How many characters to read before the overlap, to see whether a sentence ends there."""
_AROUND: Final = 64
"""How many characters to read before a position, to see whether a grapheme cluster begins there."""
_TRIES: Final = 3
"""The maximum number of boundaries of one kind to try.

A boundary is rejected only if a combining mark follows its white space, which is rare.
"""

_NEW_LINE: Final = r"(?:\r\n?+|[\n\x85\u2028])"
_PARAGRAPH: Final = rf"{_NEW_LINE}[ \t]*+{_NEW_LINE}|\u2029"
_CLAUSE: Final = r"[、，；：]++"
_ENDINGS: Final = ("sentence", "clause")
"""The kinds of boundary that are punctuation, which belongs to the text before the boundary.

Boundaries of the other kinds are white space.
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A section of a document's text: ``document[start:end] == text``.

    Attributes:
        index: the chunk's number, from 0.
        start: the position of the chunk's first character in the document.
        end: the position after the chunk's last character.
        text: the document's text from *start* to *end*.
    """

    index: int
    start: int
    end: int
    text: str = field(repr=False)


def cut_into_chunks(
    pieces: Iterable[str], *, size: int, overlap: int, boundary: ChunkBoundary = "sentence"
) -> Iterator[Chunk]:
    """Split a document into chunks of at most *size* characters.

    The chunks cover the whole document. Each chunk begins inside the previous chunk or right after
    it. The chunks do not depend on the lengths of *pieces*. A document of only white space has no
    chunks.

    With the boundary ``"sentence"``:

    - A chunk ends in the last third of *size*, at the best boundary there. The boundaries are, best
      first: the end of a paragraph that ends with a sentence, the end of a sentence, a paragraph
      (or heading), a line, a clause, a word. Among equally good boundaries, the last one is used.
      Without any boundary, the chunk ends at *size*, between two grapheme clusters if possible.
    - The next chunk begins with the first sentence or paragraph in the earlier half of the overlap,
      or else with a word.
    - White space after a boundary belongs to the chunk before the boundary. White space that does
      not fit there is split like text, so a chunk may contain only white space.

    With the boundary ``"character"``, the chunks are ``document[i : i + size]`` for each *i* of
    ``range(0, len(document), size - overlap)``. The last chunk may lie within the previous chunk.

    Args:
        pieces: the document's text, in pieces of any length.
        size: the maximum length of a chunk, in characters.
        overlap: the maximum number of characters that two consecutive chunks share.
        boundary: ``"sentence"`` to end chunks at the best boundary, ``"character"`` to ignore
            boundaries.

    Raises:
        ConfigError: if *size* is below 1, or *overlap* is negative or not less than *size*.
    """
    check_sizes(size, overlap)
    text = "".join(pieces)
    if not text or text.isspace():
        return iter(())
    if boundary == "character":
        return (
            Chunk(index, start, min(start + size, len(text)), text[start : start + size])
            for index, start in enumerate(range(0, len(text), size - overlap))
        )
    return _cut_at_boundaries(text, size, overlap)


def check_sizes(size: int, overlap: int) -> None:
    """Raise `ConfigError` unless *size* is at least 1 and *overlap* is from 0 to below *size*."""
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


def _cut_at_boundaries(text: str, size: int, overlap: int) -> Iterator[Chunk]:
    """Split *text* into chunks that end at boundaries, such as sentence ends."""
    index = start = shared_chars = 0
    # Each chunk has at least half of the new characters that fit. Otherwise very short sentences
    # would produce a chunk for every few characters.
    min_new_chars = max(1, (size - overlap) // 2)
    while len(window := text[start : start + size + _LOOK_AHEAD]) > size:
        chunk_end = _find_chunk_end(window, size, shared_chars + min_new_chars - 1)
        yield Chunk(index, start, start + chunk_end, window[:chunk_end])
        step = _find_next_start(window, chunk_end, overlap)
        index, start, shared_chars = index + 1, start + step, chunk_end - step
    if window:
        yield Chunk(index, start, start + len(window), window)


@cache
def _compile_boundary_pattern(boundary_kind: str) -> Any:
    """Return the compiled regular expression for a kind of boundary, such as ``"sentence"``."""
    import regex

    if boundary_kind == "sentence":
        return compile_sentence_end_pattern()
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
    return regex.compile(patterns[boundary_kind], regex.VERSION1)


def _find_chunk_end(window: str, size: int, lower_bound: int) -> int:
    """Return the best position at which to end the chunk that begins at the start of *window*.

    The position is greater than *lower_bound* and at most *size*, and follows as much of the white
    space after a boundary as fits. *window* must contain `_LOOK_AHEAD` characters after *size*, or
    all remaining text.
    """
    longest = _find_length_limit(window, size, lower_bound)
    lowest = max(lower_bound, longest * 2 // 3)
    # The kinds of boundary are sorted from best to worst. Of one kind, the last boundary that fits
    # is used.
    for kind in ("prose", "sentence", "paragraph", "line", "clause", "word"):
        ends = [end for end in _find_text_ends(kind, window, lowest) if end <= longest]
        for end in reversed(ends[-_TRIES:]):
            cut = _skip_white_space(window, end, longest)
            # A cut before a combining mark would separate the mark from its letter.
            if cut > lowest and _is_cluster_boundary(window, cut):
                return cut
    if _is_cluster_boundary(window, longest):
        return longest
    return max(
        (
            position
            for position in _find_cluster_starts(window, longest)
            if lower_bound < position <= longest
        ),
        default=longest,
    )


def _find_next_start(window: str, chunk_end: int, overlap: int) -> int:
    """Return the position in *window* at which the next chunk begins.

    The current chunk begins at 0 and ends at *chunk_end*. The next chunk shares at most *overlap*
    characters with it. It begins with the first sentence or paragraph in the earlier half of the
    overlap, or else with the first clause or word there.
    """
    earliest = max(chunk_end - overlap, 1)
    # In the later half, the two chunks would share little text.
    latest = chunk_end - (chunk_end - earliest) // 2
    for kinds in (("paragraph", "sentence"), ("clause", "word")):
        starts = [
            start for kind in kinds for start in _find_chunk_starts(kind, window, earliest, latest)
        ]
        if starts:
            return min(starts)
    if _is_cluster_boundary(window, earliest):
        return earliest
    return min(
        (
            position
            for position in _find_cluster_starts(window, earliest)
            if earliest <= position <= chunk_end
        ),
        default=chunk_end,
    )


def _find_length_limit(window: str, size: int, lower_bound: int) -> int:
    """Return the maximum length of the current chunk: *size*, or less near the end of the text.

    If only white space follows the first *size* characters, the limit is the start of their last
    word, provided that it is greater than *lower_bound*. The last chunk then begins with this word,
    instead of being blank.
    """
    if len(window) - size < _LOOK_AHEAD and window[size:].isspace():
        words = window[:size].rstrip()
        start = len(words) - len("".join(words.rsplit(None, 1)[-1:]))
        if start > lower_bound:
            return start
    return size


def _find_text_ends(boundary_kind: str, window: str, start: int) -> Iterator[int]:
    """For each boundary from *start* on, yield the position at which the text before it ends.

    *boundary_kind* is a kind of boundary, such as ``"sentence"``.
    """
    for boundary in _compile_boundary_pattern(boundary_kind).finditer(window, start):
        yield boundary.end() if boundary_kind in _ENDINGS else boundary.start()


def _find_chunk_starts(
    boundary_kind: str, window: str, min_start: int, max_start: int
) -> Iterator[int]:
    """Yield the first position after a boundary at which a chunk may begin, or nothing.

    Args:
        boundary_kind: the kind of boundary, such as ``"sentence"``.
        window: the text to search.
        min_start: the lowest position to yield.
        max_start: the highest position to yield.
    """
    tried = 0
    for end in _find_text_ends(boundary_kind, window, max(0, min_start - _LOOK_BACK)):
        start = _skip_white_space(window, end, max_start)
        if end > max_start or tried == _TRIES:
            return
        if start >= min_start and not window[start].isspace():
            tried += 1
            if _is_cluster_boundary(window, start):
                yield start
                return


def _skip_white_space(window: str, start: int, limit: int) -> int:
    """Return the position after the white space that begins at *start* in *window*.

    The position is at most *limit*, and never splits a Windows line break.
    """
    end: int = min(_compile_boundary_pattern("space").match(window, start).end(), limit)
    return end - 1 if start < end and window[end - 1 : end + 1] == "\r\n" else end


def _is_cluster_boundary(window: str, position: int) -> bool:
    """Return whether *position* in *window* is between two grapheme clusters."""
    # ASCII has no combining marks, so most texts need no search for clusters.
    around = window[position - 1 : position + 1]
    return (around.isascii() and around != "\r\n") or position in _find_cluster_starts(
        window, position
    )


def _find_cluster_starts(window: str, position: int) -> list[int]:
    """Return the positions in *window*, near *position*, at which grapheme clusters begin."""
    begin = max(0, position - _AROUND)
    return [
        cluster.start()
        for cluster in _compile_boundary_pattern("cluster").finditer(
            window, begin, position + _LOOK_AHEAD
        )
    ]
