"""An answer read piece by piece, and its numbers raised."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.reading import AnswerReader, shift_citations
from qtmiddleware.types import Match

MATCHES = tuple(Match(str(n), "", None, text=f"passage {n}") for n in range(1, 6))


def read(*pieces: str) -> AnswerReader:
    reading = AnswerReader(MATCHES)
    for piece in pieces:
        reading.feed(piece)
    reading.finish()
    return reading


WORDS = [
    "Fit",
    " ",
    "[1]",
    "[2]",
    "[3, 4]",
    "[9]",
    "[77]",
    ".",
    "\n",
    "NO_ANSWER",
    "<think>",
    "</think>",
    "`",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=20).map("".join)


@given(TEXTS, st.lists(st.integers(1, 9), max_size=40))
def test_the_pieces_that_are_shown_are_the_text_and_hold_nothing_invented(
    text: str, sizes: list[int]
) -> None:
    reading = AnswerReader(MATCHES)
    shown, place = [], 0
    for size in [*sizes, len(text)]:
        shown.append(reading.feed(text[place : place + size]))
        place += size
    shown.append(reading.finish())
    assert "".join(shown) == reading.text == read(text).text
    # Code and what looks like an index keep their brackets.
    if "`" not in text and "_" not in text:
        assert not re.search(r"\[(9|77)\]", reading.text)


@given(TEXTS, st.integers(0, 200))
def test_raised_numbers_point_to_the_same_passages(text: str, by: int) -> None:
    reading = read(text)
    others = tuple(Match(f"other {n}", "", None) for n in range(by))
    raised, citations = shift_citations(reading.text, reading.citations, by, (*others, *MATCHES))
    assert [it.match.id for it in citations] == [it.match.id for it in reading.citations]
    assert [it.number for it in citations] == [it.number + by for it in reading.citations]
    assert all(raised[it.start : it.end] == f"[{it.number}]" for it in citations)
    back, _ = shift_citations(raised, citations, -by, MATCHES)
    assert back == reading.text
