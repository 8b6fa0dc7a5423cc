"""An answer read piece by piece: thoughts and the marker at its beginning, and its citations."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.reading import MARKER, AnswerReader
from qtmiddleware.types import Match

MATCHES = tuple(Match(str(n), "", None, text=f"passage {n}") for n in range(1, 6))


def read(text: str, cuts: tuple[int, ...] = (), offset: int = 0) -> AnswerReader:
    """The reader of *text*, which came in pieces that end at *cuts*."""
    reading = AnswerReader(MATCHES, offset)
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    shown = [reading.feed(text[start:end]) for start, end in pairwise(places)]
    assert "".join([*shown, reading.finish()]) == reading.text
    return reading


@pytest.mark.parametrize(
    "marker",
    [
        "NO_ANSWER", "NO_ANSWER:", "NO_ANSWER -", "**NO_ANSWER**", "**NO_ANSWER:**",
        "__NO_ANSWER__", "`NO_ANSWER`", '"NO_ANSWER"', "[NO_ANSWER]", "# NO_ANSWER\n",
        "NO\\_ANSWER", "NO ANSWER.", "NO-ANSWER —", "\n\n  NO_ANSWER\n\n",
        "<think>Is it there? No.</think>\n\nNO_ANSWER:",
    ],
)  # fmt: skip
def test_the_marker_is_known_however_it_is_adorned(marker: str) -> None:
    for text, left in ((f"{marker} The age is missing.", "The age is missing."), (marker, "")):
        reading = read(text)
        assert (reading.text, reading.is_answered) == (left, False)


@pytest.mark.parametrize(
    "text",
    [
        "NO_ANSWERS are here", "NO_ANSWER_FOUND", "`no_answer` is a field of the reply.",
        "No answer was given by the vet.", "No, Jaco is fit.", "NO_ANSWE", "NO",
        "The word NO_ANSWER is a marker.", "**Jaco** is fit", "- one\n- two", "********** stars",
        "<thinly> veiled", "<", "[1] says so", "[think", "He is <think>fit</think>.",
    ],
)  # fmt: skip
def test_what_is_no_marker_is_an_answer(text: str) -> None:
    reading = read(text)
    assert (reading.text, reading.is_answered) == (text, True)


def test_a_quote_after_the_marker_stays_whole() -> None:
    assert read('NO_ANSWER "Jaco" is not named.').text == '"Jaco" is not named.'


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("<think>He is [1].\nYes.</think>\n\nHe is fit.", "He is fit."),
        ("  <THINK>x</THINK>He is fit.", "He is fit."),
        ("<think>a</think><reasoning>b</reasoning>He is fit.", "He is fit."),
        ("[THINK]x[/THINK]He is fit.", "He is fit."),
        ("<think>never ends", ""),
    ],
)
def test_thoughts_at_the_beginning_are_no_part_of_the_answer(written: str, left: str) -> None:
    reading = read(written)
    assert (reading.text, reading.is_answered) == (left, True)


PARTS = st.sampled_from(
    [MARKER, "NO", "_ANSWER", " ANSWER", "-ANSWER", "`", "**", "__", ":", " ", "\n", "Jaco",
     "<think>", "</think>", "[", "think]", "[/think]", ".", "NO\\_ANSWER", "_", "A", '"',
     "[1]", "[3, 4]", "[9]", "[77]"]
)  # fmt: skip
TEXTS = st.one_of(st.lists(PARTS, max_size=12).map("".join), st.text(max_size=40))
CUTS = st.lists(st.integers(0, 60), max_size=8).map(tuple)


@given(TEXTS, CUTS)
def test_however_an_answer_is_cut_the_same_comes_out_and_nothing_invented(
    text: str, cuts: tuple[int, ...]
) -> None:
    whole = read(text)
    for pieces in (read(text, cuts), read(text, tuple(range(len(text))))):
        assert (pieces.text, pieces.citations) == (whole.text, whole.citations)
        assert pieces.is_answered == whole.is_answered
    # Code and what looks like an index keep their brackets.
    if not re.search(r"[`_]|think\]", text):
        assert not re.search(r"\[(9|77)\]", whole.text)


@given(TEXTS, st.integers(0, 200))
def test_raised_numbers_point_to_the_same_passages(text: str, by: int) -> None:
    plain, raised = read(text), read(text, offset=by)
    assert [it.match for it in raised.citations] == [it.match for it in plain.citations]
    assert [it.number for it in raised.citations] == [it.number + by for it in plain.citations]
    assert all(raised.text[it.start : it.end] == f"[{it.number}]" for it in raised.citations)
