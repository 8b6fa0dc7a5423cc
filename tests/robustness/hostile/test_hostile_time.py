"""No text makes the time to read it grow faster than its length: no pattern, and no function that uses some."""

from __future__ import annotations

from contextlib import suppress

import pytest

from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.errors import QtMiddlewareError
from tests.robustness.hostile.text_readers import FUNCTIONS
from tests.support.hostile_corpus import MADE

pytestmark = pytest.mark.thorough

LENGTH = 1 << 20
PUMPS = (
    *MADE.values(),
    *(
        (start, pump, end)
        for start in ("", "a")
        for end in ("", "x:")
        for pump in (
            "A0",
            "\n",
            "a.",
            "l'",
            "<a b='",
            "<!--",
            "</",
            "<?",
            "<![CDATA[",
            "<td>x",
            "&#",
        )
    ),
)
KNOWN = {
    "a label and spaces": ("a", " ", "b:", "parse, rewrite"),
    "a string and line ends": ('{"rewrite": "a"', "\n", "b", "parse, rewrite"),
    "a text and line ends": ('{"rewrite": "a', "\\n", 'b"}', "parse, rewrite"),
    "thoughts": ("", "<think></think>", "", "parse, combined"),
    "thoughts before an answer": ("", "<think></think>", "", "an answer with citations"),
    "a word without end": ("A", "a", "", "repeats"),
    "white space before a citation": ("a", " ", "\n[9]", "an answer with citations"),
    "tags that nothing closes": ("", "<a ", "", "a page"),
    "tags with values that nothing closes": ("", "<a b='", "", "a page"),
    "comments that nothing closes": ("", "<!--", ">", "a page"),
    "ends that nothing closes": ("", "</", "", "a page"),
    "instructions that nothing closes": ("", "<?", "", "a page"),
    "marked sections that nothing closes": ("", "<![CDATA[", ">", "a page"),
    "cells of one row": ("", "<td>x", "", "a page"),
    "many short words": ("", "a ", "", "an answer with citations"),
    "a word of letters in both cases": ("", "aB", "", "the tool of an agent"),
    "many citations": ("", "words before it [1]", "", "an answer with citations"),
}


def read_a_megabyte(name: str, start: str, pump: str, end: str) -> None:
    # What took the square of its length would not be done before the test is stopped.
    with suppress(QtMiddlewareError):
        FUNCTIONS[name](start + pump * (LENGTH // len(pump)) + end)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_megabyte_is_read_to_its_end(name: str) -> None:
    for attack in PUMPS[list(FUNCTIONS).index(name) :: len(FUNCTIONS)]:
        read_a_megabyte(name, *attack)


@pytest.mark.parametrize("name", KNOWN)
def test_what_once_took_the_square_of_its_length_is_read_to_its_end(name: str) -> None:
    *attack, function = KNOWN[name]
    read_a_megabyte(function, *attack)


def test_white_space_that_comes_piece_by_piece_is_read_to_its_end() -> None:
    reader = AnswerReader(())
    for piece in ("a", *[" " * 10] * 20_000, "b"):
        reader.feed(piece)
    assert reader.text == "a" + " " * 200_000 + "b"
