"""The rules keep their laws on questions that nobody would type."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.preprocessing import (
    LANGUAGES,
    detect_language,
    extract_keywords,
    find_protected_spans,
)
from tests.support.hostile_corpus import LONG, SHORT

pytestmark = pytest.mark.thorough

# Separators that Python takes for white space, beside what the short ways through the rules look
# at.
ODD = st.text(
    st.sampled_from("as' \x1c\x1d\x1e\x1f\t\n\x0b\x0c\r\x85\u2028.,?()-'A0s"), max_size=14
)


def check(text: str) -> None:
    made = extract_keywords(text)
    assert bool(made.keywords) == bool(text)
    assert extract_keywords(made.keywords).keywords == made.keywords
    assert made.language in ("", *LANGUAGES)
    assert detect_language(text) in ("", *LANGUAGES)
    spans = find_protected_spans(text)
    assert all(text[it.start : it.end] == it.text for it in spans)
    assert all(one.end <= other.start for one, other in pairwise(spans))


def test_every_text_of_the_corpus_keeps_the_laws() -> None:
    for hostile in (*SHORT, *LONG[::6]):
        check(hostile.text)


@settings(deadline=None)
@given(ODD)
def test_a_question_with_odd_white_space_keeps_the_laws(text: str) -> None:
    check(text)
