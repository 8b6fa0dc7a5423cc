"""No text makes the time to read it grow faster than its length: no pattern, and no function that uses some."""

from __future__ import annotations

import pytest

from tests.robustness.hostile.text_readers import FUNCTIONS, PUMPS

pytestmark = pytest.mark.thorough

LENGTH = 1 << 20


def make_long(start: str, pump: str, end: str) -> str:
    return start + pump * max(1, (LENGTH - len(start) - len(end)) // len(pump)) + end


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_megabyte_is_read_to_its_end(name: str) -> None:
    # What took the square of its length would not be done before the test is stopped.
    place = list(FUNCTIONS).index(name)
    for attack in PUMPS[place * 3 :: 331]:
        FUNCTIONS[name](make_long(*attack))


KNOWN = {
    "a label and spaces": ("a", " ", "b:", "parse, rewrite"),
    "a string and line ends": ('{"rewrite": "a"', "\n", "b", "read_json of a reply"),
    "a text and line ends": ('{"rewrite": "a', "\\n", 'b"}', "parse, rewrite"),
    "thoughts": ("", "<think></think>", "", "strip_thoughts"),
    "thoughts before an answer": ("", "<think></think>", "", "an answer with citations"),
    "a word without end": ("A", "a", "", "find_repeats"),
    "white space before a citation that is none": ("a", " ", "\n[9]", "an answer with citations"),
    "tags that nothing closes": ("", "<a ", "", "a page"),
    "tags with values that nothing closes": ("", "<a b='", "", "a page"),
    "comments that nothing closes": ("", "<!--", ">", "a page"),
    "ends that nothing closes": ("", "</", "", "a page"),
    "instructions that nothing closes": ("", "<?", "", "a page"),
    "marked sections that nothing closes": ("", "<![CDATA[", ">", "a page"),
    "cells of one row": ("", "<td>x", "", "a page"),
    "many citations": ("", "words before it [1]", "", "an answer with citations"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_once_took_the_square_of_its_length_is_read_to_its_end(name: str) -> None:
    *attack, function = KNOWN[name]
    FUNCTIONS[function](make_long(*attack))  # type: ignore[arg-type]
