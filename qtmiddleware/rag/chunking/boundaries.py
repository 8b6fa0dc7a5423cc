"""Where a chunk may end and the next one begin: at paragraphs, sentences, lines and words.

Both questions are answered from one window of the text alone, in time that grows with its length and no faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from qtmiddleware.preprocessing.lexicon import load_all

LOOK_AHEAD: Final = 64
"""Characters behind the longest possible chunk that a window holds, to see what follows a full stop."""
_LOOK_BACK: Final = 32
"""Characters before the place where the overlap may begin, to see whether a sentence ends there."""
_AROUND: Final = 64
"""Characters read before a place to tell whether a grapheme cluster begins there."""
_TRIES: Final = 3
"""Boundaries of a kind that are tried; one is refused only where a mark hangs on the white space behind it."""

_SENTENCE: Final = r"""
    (?:
        # Of a run of full stops and marks only the whole counts; that is also what keeps this linear.
        [.!?…](?<![.!?…].)[.!?…]*+
        # Something follows, and neither in small letters nor in the next cell of a table's row.
        (?=CLOSERS*+(?:\s|\Z))(?!CLOSERS*+(?:\s++\p{Ll}|[ \t]++\|))
        # No initial, no "e.g.", no abbreviation and no number of a list's item stands before it.
        (?<!(?<![\p{L}\p{M}\p{N}])(?:\p{L}|ABBREVIATIONS)\.)
        (?<!(?:^|[\n\r])[ \t]{0,8}[0-9]{1,3}\.)
    |
        # What ends a sentence in other scripts needs no white space behind it: 。 ！ ？ ؟ ۔ । ॥ ።
        [\p{Sentence_Terminal}--[.!?]]++
    )
    CLOSERS*+
"""
_CLOSERS: Final = r"""[\p{Pe}\p{Pf}\p{Pi}"'*_]"""
_NEW_LINE: Final = r"(?:\r\n?+|[\n\x85\u2028])"
_PARAGRAPH: Final = rf"{_NEW_LINE}[ \t]*+{_NEW_LINE}|\u2029"
_CLAUSE: Final = r"[、，；：]++"
_ENDINGS: Final = ("sentence", "clause")
"""Boundaries whose marks belong to what they end; the others are white space behind it."""


@cache
def _pattern(kind: str) -> Any:
    """The pattern of a kind of boundary."""
    import regex

    # Behind these a full stop ends no sentence: a name or a number follows.
    abbreviations = dict.fromkeys(word for one in load_all() for word in one.abbreviations)
    sentence = _SENTENCE.replace("CLOSERS", _CLOSERS).replace("ABBREVIATIONS", "|".join(abbreviations))
    patterns = {
        "prose": rf"(?:{_PARAGRAPH})(?<=[\p{{Sentence_Terminal}}…:]{_CLOSERS}{{0,2}}[ \t]{{0,2}}(?:{_PARAGRAPH}))",
        "paragraph": _PARAGRAPH,
        "sentence": sentence,
        "line": _NEW_LINE,
        "clause": _CLAUSE,
        "word": r"\s++",
        "space": r"\s*+",
        "cluster": r"\X",
    }
    return regex.compile(patterns[kind], regex.VERSION1 | (regex.VERBOSE if kind == "sentence" else 0))


def end_of_chunk(window: str, size: int, shortest: int) -> int:
    """Where the chunk that begins *window* ends: behind *shortest* characters, and at *size* at the latest.

    *window* holds more than *size* characters: the text to `LOOK_AHEAD` behind them, or to its end. White space behind
    a boundary belongs to the chunk before it as far as it fits.
    """
    longest = _limit(window, size, shortest)
    lowest = max(shortest, longest * 2 // 3)
    for kind in ("prose", "sentence", "paragraph", "line", "clause", "word"):
        ends = [end for end in _ends(kind, window, lowest) if end <= longest]
        for end in reversed(ends[-_TRIES:]):
            cut = _behind_space(window, end, longest)
            if cut > lowest and _is_whole(window, cut):
                return cut
    if _is_whole(window, longest):
        return longest
    return max((it for it in _clusters(window, longest) if shortest < it <= longest), default=longest)


def start_of_next(window: str, cut: int, overlap: int) -> int:
    """Where the chunk after the one that ends at *cut* begins: *overlap* characters before it at most, 1 at least.

    At the first sentence that begins in the earlier half of the overlap, else at the first word there.
    """
    first = max(cut - overlap, 1)
    last = cut - (cut - first) // 2
    for kinds in (("paragraph", "sentence"), ("clause", "word")):
        starts = [it for kind in kinds for it in _starts(kind, window, first, last)]
        if starts:
            return min(starts)
    if _is_whole(window, first):
        return first
    return min((it for it in _clusters(window, first) if first <= it <= cut), default=cut)


def _limit(window: str, size: int, shortest: int) -> int:
    """*size*; where only white space is left behind that, the last word's start: a chunk of it alone would be empty."""
    if len(window) - size < LOOK_AHEAD and window[size:].isspace():
        words = window[:size].rstrip()
        start = len(words) - len("".join(words.rsplit(None, 1)[-1:]))
        if start > shortest:
            return start
    return size


def _ends(kind: str, window: str, lowest: int) -> Iterator[int]:
    """Where what stands before each boundary behind *lowest* ends, in order."""
    for found in _pattern(kind).finditer(window, lowest):
        yield found.end() if kind in _ENDINGS else found.start()


def _starts(kind: str, window: str, first: int, last: int) -> Iterator[int]:
    """The first place from *first* to *last* where something begins behind a boundary, if there is one."""
    tried = 0
    for end in _ends(kind, window, max(0, first - _LOOK_BACK)):
        start = _behind_space(window, end, last)
        if end > last or tried == _TRIES:
            return
        if start >= first and not window[start].isspace():
            tried += 1
            if _is_whole(window, start):
                yield start
                return


def _behind_space(window: str, end: int, limit: int) -> int:
    """The place behind the white space that begins at *end*, not behind *limit*."""
    place: int = min(_pattern("space").match(window, end).end(), limit)
    return place - 1 if end < place and window[place - 1 : place + 1] == "\r\n" else place


def _is_whole(window: str, place: int) -> bool:
    """Whether *place* lies between two grapheme clusters."""
    around = window[place - 1 : place + 1]
    return (around.isascii() and around != "\r\n") or place in _clusters(window, place)


def _clusters(window: str, place: int) -> list[int]:
    """Where the grapheme clusters around *place* begin."""
    begin = max(0, place - _AROUND)
    return [it.start() for it in _pattern("cluster").finditer(window, begin, place + LOOK_AHEAD)]
