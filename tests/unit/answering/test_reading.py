"""An answer read piece by piece: thoughts and the marker at its beginning, and its citations."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.types import Match


def read(text: str, cuts: tuple[int, ...] = ()) -> AnswerReader:
    """The reader of *text*, which came in pieces that end at *cuts*."""
    matches = [Match(str(number), "", None, text="a passage") for number in range(1, 10)]
    reading = AnswerReader(matches)
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    shown = [reading.feed(text[start:end]) for start, end in pairwise(places)]
    assert "".join([*shown, reading.feed("", is_last=True)]) == reading.text
    return reading


@pytest.mark.parametrize(
    "marker",
    [
        "NO_ANSWER", "NO_ANSWER:", "**NO_ANSWER:**", '"NO_ANSWER"', "[NO_ANSWER]",
        "# NO_ANSWER\n", "NO\\_ANSWER", "NO ANSWER.", "NO_ANSWER —",
        "<think>Is it there? No.</think>\n\nNO_ANSWER:",
    ],
)  # fmt: skip
def test_the_marker_is_known_however_it_is_adorned(marker: str) -> None:
    for text, left in ((f"{marker} The age is missing.", "The age is missing."), (marker, "")):
        reading = read(text)
        assert (reading.text, reading.is_answered) == (left, False)
    assert read('NO_ANSWER "Jaco" is not named.').text == '"Jaco" is not named.'


@pytest.mark.parametrize(
    "text",
    [
        "NO_ANSWERS are here", "NO_ANSWER_FOUND", "`no_answer` is a field of the reply.",
        "No answer was given by the vet.", "NO_ANSWE", "The word NO_ANSWER is a marker.",
        "**Jaco** is fit", "- one\n- two", "<thinly> veiled", "[think", "He is <think>fit</think>.",
        # No citations either.
        "As of [2023] he is fit", "the interval [0, 1] is closed", "they won [3-1]", "[1,000] dogs",
        "a footnote[^1]", "`dogs[1]` and `x [2]`",
        "```python\nfit = [1]\nprint(fit [2])\n```\nend", r"\[1\]", "[sic] and [x]", "[1", "[page 1]",
    ],
)  # fmt: skip
def test_what_is_no_marker_and_no_citation_stays_as_it_is(text: str) -> None:
    reading = read(text)
    assert (reading.text, reading.is_answered) == (text, True)
    assert (reading.citations, reading.invented_count) == ([], 0)


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("<think>He is [1].\nYes.</think>\n\nHe is fit.", "He is fit."),
        ("<THINK>a</THINK><reasoning>b</reasoning>He is fit.", "He is fit."),
        ("<think>never ends", ""),
        ("\u2028\xa0<think>a</think>He is fit.", "He is fit."),
    ],
)
def test_thoughts_at_the_beginning_are_no_part_of_the_answer(written: str, left: str) -> None:
    reading = read(written)
    assert (reading.text, reading.is_answered) == (left, True)


@pytest.mark.parametrize(
    ("written", "shown", "invented"),
    [
        ("Jaco is fit [1] [2].", "Jaco is fit [1] [2].", 0),
        ("Jaco is fit [1, 2].", "Jaco is fit [1][2].", 0),
        ("Jaco is fit [1–3, 5].", "Jaco is fit [1][2][3][5].", 0),
        ("Jaco is fit [1 and 2].", "Jaco is fit [1][2].", 0),
        ("Jaco is fit [2, 2].", "Jaco is fit [2].", 0),
        ("Jaco is fit [Source 1, Source 2].", "Jaco is fit [1][2].", 0),
        ("Jaco is fit [#3].", "Jaco is fit [3].", 0),
        ("Jaco is fit【1†source】.", "Jaco is fit[1].", 0),
        ("ジャコは元気です［2］。", "ジャコは元気です[2]。", 0),
        ("> quoted [1]\n\n- item [2]", "> quoted [1]\n\n- item [2]", 0),
        # A mark without a passage goes with the space before it.
        ("Fit [12] and well [1].", "Fit and well [1].", 1),
        ("Fit [8-12].", "Fit [8][9].", 3),
        ("Fit [12] [1].", "Fit [1].", 1),
        ("Fit\n[12]\nand well", "Fit\n\nand well", 1),
        ("[12]", "", 1),
        # Code ends, and citations go on.
        ("`a` is fit [2]", "`a` is fit [2]", 0),
        ("a stray ` and\nnext line [2]", "a stray ` and\nnext line [2]", 0),
        ("````\n```\n````\nfit [2]", "````\n```\n````\nfit [2]", 0),
    ],
)
def test_every_way_to_write_a_citation_becomes_one_mark_per_passage(
    written: str, shown: str, invented: int
) -> None:
    reading = read(written)
    assert (reading.text, reading.invented_count) == (shown, invented)
    marks = [reading.text[it.start : it.end] for it in reading.citations]
    assert marks == re.findall(r"\[\d\]", shown)


PARTS = (
    'NO_ANSWER|NO|_ANSWER| ANSWER|`|```|**|:| |\n|\n\n|Jaco|<think>|</think>|[|think]|.|_|A|"|犬|'
    "[1]|[3, 4]|[77]|[passage 2]|【1†s】|[2023]|[1|]|(|x_y"
)
TEXTS = st.lists(st.sampled_from(PARTS.split("|")), max_size=20).map("".join) | st.text(max_size=60)


@given(TEXTS, st.lists(st.integers(0, 99), max_size=9).map(tuple))
def test_however_an_answer_is_cut_the_same_comes_out(text: str, cuts: tuple[int, ...]) -> None:
    whole = read(text)
    for pieces in (read(text, cuts), read(text, tuple(range(len(text))))):
        assert (pieces.text, pieces.citations) == (whole.text, whole.citations)
        assert pieces.is_answered == whole.is_answered
        assert pieces.invented_count == whole.invented_count
    assert whole.renumber(0) == whole.text


@given(st.text(alphabet=st.characters(exclude_characters="[]【】［］`"), max_size=60))
def test_text_is_shown_as_soon_as_it_comes(text: str) -> None:
    reading, shown = read(""), ""
    reading.feed("x ")
    for place, char in enumerate(text, 1):
        shown += reading.feed(char)
        assert shown.strip() == text[:place].strip()
