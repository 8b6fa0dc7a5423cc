"""The beginning of an answer: thoughts, the marker of an unanswered question, white space."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.reading import MARKER, OpeningReader


def read(text: str, cuts: tuple[int, ...] = ()) -> tuple[str, bool]:
    opening = OpeningReader()
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    given_out = "".join(opening.feed(text[a:b]) for a, b in pairwise(places))
    return given_out + opening.flush_held_text(), opening.is_answered


@pytest.mark.parametrize(
    "marker",
    [
        "NO_ANSWER",
        "NO_ANSWER:",
        "NO_ANSWER.",
        "NO_ANSWER -",
        "NO_ANSWER —",
        "**NO_ANSWER**",
        "**NO_ANSWER:**",
        "**NO_ANSWER**:",
        "__NO_ANSWER__",
        "`NO_ANSWER`",
        '"NO_ANSWER"',
        "[NO_ANSWER]",
        "# NO_ANSWER\n",
        "> NO_ANSWER\n",
        "NO\\_ANSWER",
        "no_answer:",
        "**No_Answer:**",
        "__no_answer__:",
        "NO ANSWER.",
        "NO-ANSWER —",
        "[NO ANSWER]:",
        "\n\n  NO_ANSWER\n\n",
        "<think>Is it there? No.</think>\n\nNO_ANSWER:",
    ],
)
def test_the_marker_is_known_however_it_is_adorned(marker: str) -> None:
    assert read(f"{marker} The age is missing.") == ("The age is missing.", False)
    assert read(marker) == ("", False)


@pytest.mark.parametrize(
    "text",
    [
        "NO_ANSWERS are here",
        "NO_ANSWER_FOUND",
        "no_answers",
        "`no_answer` is a field of the reply.",
        "no_answer here",
        "NO ANSWER FROM JACO",
        "NO ANSWERS",
        "No answer was given by the vet.",
        "No, Jaco is fit.",
        "No-answer calls are not counted.",
        "The word NO_ANSWER is a marker.",
        "NO_ANSWE",
        "NO",
        "**Jaco** is fit",
        "- one\n- two",
        "********** stars",
        "<thinly> veiled",
        "<",
        "[1] says so",
        "[think",
    ],
)
def test_what_is_no_marker_is_an_answer(text: str) -> None:
    assert read(text) == (text, True)


def test_a_quote_after_the_marker_stays_whole() -> None:
    assert read('NO_ANSWER "Jaco" is not named.') == ('"Jaco" is not named.', False)


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("<think>He is [1].\nYes.</think>\n\nHe is fit.", "He is fit."),
        ("  <THINK>x</THINK>He is fit.", "He is fit."),
        ("<think>a</think><reasoning>b</reasoning>He is fit.", "He is fit."),
        ("[THINK]x[/THINK]He is fit.", "He is fit."),
        ("<think>never ends", ""),
        ("He is <think>fit</think>.", "He is <think>fit</think>."),
    ],
)
def test_thoughts_at_the_beginning_are_no_part_of_the_answer(written: str, left: str) -> None:
    assert read(written) == (left, True)


PARTS = st.sampled_from(
    [MARKER, "NO", "_ANSWER", " ANSWER", "-ANSWER", "no_answer", "`",
     "**", "__", ":", " ", "\n", "Jaco", "<think>", "</think>", "[", "think]", "[/think]", "x",
     ".", "-", "NO\\_ANSWER", "_", "A", '"', "»"]
)  # fmt: skip
TEXTS = st.one_of(st.lists(PARTS, max_size=12).map("".join), st.text(max_size=40))
CUTS = st.lists(st.integers(0, 60), max_size=8).map(tuple)


@given(TEXTS, CUTS)
def test_however_the_beginning_is_cut_the_same_comes_out(text: str, cuts: tuple[int, ...]) -> None:
    assert read(text, cuts) == read(text)
    assert read(text, tuple(range(len(text)))) == read(text)


@given(TEXTS)
def test_what_is_given_out_is_the_end_of_what_came(text: str) -> None:
    given_out, _ = read(text)
    assert text.endswith(given_out)


@given(st.text(max_size=40), CUTS)
def test_the_marker_never_shows(rest: str, cuts: tuple[int, ...]) -> None:
    given_out, found = read(f"{MARKER}: {rest}", cuts)
    assert not found
    assert MARKER not in given_out or MARKER in rest
