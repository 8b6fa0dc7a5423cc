"""Marks in an answer: which are citations, which are text, and what becomes of either."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.citing import MOST_CHARS, CitationReader


def read(
    text: str, count: int = 9, passages: tuple[str, ...] = (), *, cuts: tuple[int, ...] = ()
) -> tuple[str, CitationReader]:
    """What is given out for *text* when it comes in pieces that end at *cuts*."""
    citing = CitationReader([*passages, *["plain"] * (count - len(passages))])
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    given = [citing.feed(text[a:b]) for a, b in pairwise(places)]
    return "".join(given) + citing.feed("", is_last=True), citing


def numbers(text: str, count: int = 9, passages: tuple[str, ...] = ()) -> list[int]:
    return [number for number, _, _ in read(text, count, passages)[1].marks]


@pytest.mark.parametrize(
    ("written", "given_out"),
    [
        ("Jaco is fit [1].", "Jaco is fit [1]."),
        ("Jaco is fit [1] [2].", "Jaco is fit [1] [2]."),
        ("Jaco is fit [1, 2].", "Jaco is fit [1][2]."),
        ("Jaco is fit [1-3].", "Jaco is fit [1][2][3]."),
        ("Jaco is fit [1–3, 5].", "Jaco is fit [1][2][3][5]."),
        ("Jaco is fit [1 and 2].", "Jaco is fit [1][2]."),
        ("Jaco is fit [2, 2].", "Jaco is fit [2]."),
        ("Jaco is fit [passage 2].", "Jaco is fit [2]."),
        ("Jaco is fit [Source 1, Source 2].", "Jaco is fit [1][2]."),
        ("Jaco is fit [#3].", "Jaco is fit [3]."),
        ("Jaco is fit【1†source】.", "Jaco is fit[1]."),
        ("ジャコは元気です［2］。", "ジャコは元気です[2]。"),
        ("[1] says so.", "[1] says so."),
        ("> quoted [1]\n\n- item [2]", "> quoted [1]\n\n- item [2]"),
        ("**Fit** [1]: very", "**Fit** [1]: very"),
    ],
)
def test_every_way_to_write_a_citation_becomes_one_mark_a_passage(
    written: str, given_out: str
) -> None:
    text, citing = read(written)
    assert text == given_out
    assert [text[start:end] for _, start, end in citing.marks] == re.findall(r"\[\d\]", given_out)
    assert citing.invented_count == 0


@pytest.mark.parametrize(
    "text",
    [
        "As of [2023] he is fit",
        "the interval [0, 1] is closed",
        "they won [3-1]",
        "[1,000] dogs",
        "see [1](https://vet.example)",
        "see [the report][1]",
        "[1]: https://vet.example",
        "a footnote[^1]",
        "a[1] is the second, items_list[2] the third",
        "`dogs[1]` and `x [2]`",
        "```python\nfit = [1]\nprint(fit [2])\n```\nend",
        r"\[1\]",
        "[sic] and [...] and [x]",
        "[1",
        "[1, ",
        "[page 1]",
    ],
)
def test_what_is_no_citation_stays_as_it_is(text: str) -> None:
    given_out, citing = read(text)
    assert given_out == text.rstrip()
    assert citing.marks == []
    assert citing.invented_count == 0


@pytest.mark.parametrize(
    ("written", "given_out", "invented"),
    [
        ("Fit [12].", "Fit.", 1),
        ("Fit [12] and well [1].", "Fit and well [1].", 1),
        ("Fit [1, 12].", "Fit [1].", 1),
        ("Fit [8-12].", "Fit [8][9].", 3),
        ("Fit [12] [1].", "Fit [1].", 1),
        ("Fit [12]and well", "Fit and well", 1),
        ("Fit\n[12]\nand well", "Fit\n\nand well", 1),
        ("[12]", "", 1),
        ("Fit  \t[12]!", "Fit!", 1),
    ],
)
def test_a_mark_without_a_passage_goes_with_the_space_before_it(
    written: str, given_out: str, invented: int
) -> None:
    text, citing = read(written)
    assert text == given_out
    assert citing.invented_count == invented


def test_code_ends_and_citations_go_on() -> None:
    assert numbers("`a[1]` is fit [2]") == [2]
    assert numbers("a stray ` and [1]\nnext line [2]") == [2]
    assert numbers("```\n[1]\n```\nfit [2]") == [2]
    assert numbers("````\n```\n[1]\n````\nfit [2]") == [2]


def test_a_bracket_that_was_copied_with_its_words_out_of_a_passage_is_no_citation() -> None:
    passage = "The dog Jaco[3] was seen by the vet [2] in May."
    assert numbers(
        'It says "The dog Jaco[3] was seen by the vet [2] in May" [1].', 3, (passage,)
    ) == [1]
    assert numbers("Jaco [3] is fit [2].", 3, (passage,)) == [3, 2]
    text, citing = read("He was seen by the vet [2] in May [7].", 3, (passage,))
    assert text == "He was seen by the vet [2] in May."
    assert citing.invented_count == 1


PLAIN = ["Jaco", "fit", " ", "  ", "\n", "\n\n", ".", "a", "x_y", ":", "犬", "\u00a0", "`", "```"]
MARKS = [
    "[1]",
    "[9]",
    "[12]",
    "[1, 2]",
    "[3-5]",
    "【1†s】",
    "［3］",
    "[passage 2]",
    "[0]",
    "[2023]",
]
WORDS = st.sampled_from([*PLAIN, *MARKS, "[1", "]", "[", "(", "†"])
TEXTS = st.one_of(st.lists(WORDS, max_size=30).map("".join), st.text(max_size=80))
CUTS = st.lists(st.integers(0, 120), max_size=12).map(tuple)


@given(TEXTS, CUTS, st.integers(0, 12))
def test_however_an_answer_is_cut_the_same_comes_out(
    text: str, cuts: tuple[int, ...], count: int
) -> None:
    whole, at_once = read(text, count)
    pieces, piecewise = read(text, count, cuts=cuts)
    assert pieces == whole
    assert piecewise.marks == at_once.marks
    assert piecewise.invented_count == at_once.invented_count
    for number, start, end in at_once.marks:
        assert whole[start:end] == f"[{number}]"
        assert 1 <= number <= count


@given(st.text(alphabet=st.characters(exclude_characters="[]【】［］`"), max_size=60))
def test_text_is_given_out_as_soon_as_it_comes(text: str) -> None:
    citing = CitationReader(["plain"] * 5)
    given_out = ""
    for place, char in enumerate(text, 1):
        given_out += citing.feed(char)
        assert given_out == text[:place].strip()


@given(st.text(alphabet="0123456789, -and#.", max_size=300))
def test_what_may_become_a_mark_is_held_back_no_longer_than_a_mark_can_be(inside: str) -> None:
    citing = CitationReader(["plain"] * 5)
    given_out = "".join(map(citing.feed, "x[" + inside))
    assert len(("x[" + inside).rstrip()) - len(given_out) <= MOST_CHARS + 1
