"""Split a document into overlapping chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.documents.pieces import Location
from qtmiddleware.preprocessing.sentences import CLOSERS, compile_sentence_end_pattern

# How many characters to read around a position, to see what ends or begins there.
_AROUND: Final = 64
# The maximum number of boundaries of one kind to try.
# A boundary is rejected only if a combining mark follows its white space, which is rare.
_TRIES: Final = 3
_NEW_LINE: Final = r"(?:\r\n?+|[\n\x85\u2028])"
_PARAGRAPH: Final = rf"{_NEW_LINE}[ \t]*+{_NEW_LINE}|\u2029"
_BOUNDARIES: Final = {
    "prose": rf"(?:{_PARAGRAPH})(?<=[\p{{Sentence_Terminal}}…:]{CLOSERS}{{0,2}}"
    rf"[ \t]{{0,2}}(?:{_PARAGRAPH}))",
    "paragraph": _PARAGRAPH,
    "line": _NEW_LINE,
    "clause": r"[、，；：]++",
    "word": r"\s++",
    "space": r"\s*+",
    "cluster": r"\X",
}


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
    best boundaries there: first the end of a paragraph that ends with a sentence, then the end of a
    sentence, a paragraph (or heading), a line, a clause, a word. The next chunk begins with the
    first sentence in the earlier half of the overlap, or else with a word. White space belongs to
    the chunk before it. No chunk ends within a grapheme cluster that fits.

    With the boundary ``"character"``, the chunks are ``document[i : i + size]`` for each *i* of
    ``range(0, len(document), size - overlap)``.

    Raises `ConfigError` if *size* is below 1, or *overlap* is negative or not less than *size*.
    """
    check_sizes(size, overlap)
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


def check_sizes(size: int, overlap: int) -> None:
    """Raise `ConfigError` unless *size* is at least 1 and *overlap* is from 0 to below *size*."""
    if size < 1:
        raise _build_error("chunkSize", size, "1 or more")
    if not 0 <= overlap < size:
        allowed = f"0 or more and less than chunkSize, which is {size}"
        raise _build_error("chunkOverlap", overlap, allowed)


def _build_error(name: str, value: int, allowed: str) -> ConfigError:
    message = f"{name} must be {allowed}, not {value}"
    return ConfigError(message, path=name, value=value, allowed=allowed)


@cache
def _compile_boundary(kind: str) -> Any:
    import regex

    if kind == "sentence":
        return compile_sentence_end_pattern()
    return regex.compile(_BOUNDARIES[kind], regex.VERSION1)


def _find_chunk_end(window: str, size: int, lower_bound: int) -> int:
    """Return the best end, above *lower_bound*, of the chunk at the start of *window*."""
    lowest = max(lower_bound, size * 2 // 3)
    for kind in ("prose", "sentence", "paragraph", "line", "clause", "word"):
        ends = [end for end in _find_text_ends(kind, window, lowest) if end <= size]
        for end in reversed(ends[-_TRIES:]):
            cut = _skip_white_space(window, end, size)
            if cut > lowest and _is_cluster_boundary(window, cut):
                return cut
    # Without any boundary, the chunk ends as late as possible, but not within a character.
    for cut in range(size, max(lower_bound, size - _AROUND), -1):
        if _is_cluster_boundary(window, cut):
            return cut
    return size


def _find_next_start(window: str, chunk_end: int, overlap: int) -> int:
    """Return the position in *window* at which the next chunk begins."""
    earliest = max(chunk_end - overlap, 1)
    # In the later half, the two chunks would share little text.
    latest = chunk_end - (chunk_end - earliest) // 2
    for kinds in (("paragraph", "sentence"), ("clause", "word")):
        starts = [_find_chunk_start(kind, window, earliest, latest) for kind in kinds]
        if found := [start for start in starts if start is not None]:
            return min(found)
    # Without any boundary, the overlap is as long as possible.
    for start in range(earliest, min(chunk_end, earliest + _AROUND) + 1):
        if _is_cluster_boundary(window, start):
            return start
    return chunk_end


def _find_text_ends(kind: str, window: str, start: int) -> Iterator[int]:
    """Yield the position after the text before each boundary, which is white space or a mark."""
    for boundary in _compile_boundary(kind).finditer(window, start):
        yield boundary.end() if kind in ("sentence", "clause") else boundary.start()


def _find_chunk_start(kind: str, window: str, earliest: int, latest: int) -> int | None:
    """Return the first position after a boundary at which a chunk may begin."""
    tried = 0
    for end in _find_text_ends(kind, window, max(0, earliest - _AROUND)):
        start = _skip_white_space(window, end, latest)
        if end > latest or tried == _TRIES:
            break
        if start >= earliest and not window[start].isspace():
            tried += 1
            if _is_cluster_boundary(window, start):
                return start
    return None


def _skip_white_space(window: str, start: int, limit: int) -> int:
    """Return the end of the white space at *start*, without half of a Windows line break."""
    end: int = min(_compile_boundary("space").match(window, start).end(), limit)
    return end - 1 if start < end and window[end - 1 : end + 1] == "\r\n" else end


def _is_cluster_boundary(window: str, position: int) -> bool:
    # ASCII has no combining marks, so most texts need no search for clusters.
    around = window[position - 1 : position + 1]
    if around.isascii():
        return around != "\r\n"
    begin, end = max(0, position - _AROUND), position + _AROUND
    clusters = _compile_boundary("cluster").finditer(window, begin, end)
    return any(cluster.start() == position for cluster in clusters)
