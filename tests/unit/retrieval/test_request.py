"""What a question must be, and what it becomes before anything is searched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.config.settings import LimitSettings, PreprocessSettings, Settings
from qtmiddleware.retrieval.request import prepare_query, validate_query

QUERY = "Does Jaco have any health concerns?"


class Text(str):
    """A text of an own type."""

    __slots__ = ()


def test_a_text_is_given_back_as_it_is() -> None:
    own = Text("Jaco")
    assert validate_query(own, "query", Settings()) is own


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000", "\u2028"])
def test_a_blank_text_is_refused(blank: str) -> None:
    with pytest.raises(qtm.InvalidQuery, match=r"^question is blank$") as caught:
        validate_query(blank, "question", Settings())
    assert caught.value.argument == "question"


@given(
    st.one_of(
        st.none(), st.integers(), st.floats(), st.binary(), st.lists(st.text()), st.dictionaries(st.text(), st.text())
    )
)
def test_what_is_no_text_is_refused_without_showing_it(value: Any) -> None:
    with pytest.raises(qtm.InvalidQuery) as caught:
        validate_query(value, "query", Settings())
    assert str(caught.value) == f"query must be text, not {type(value).__name__}"


def test_the_length_is_counted_in_characters() -> None:
    settings = Settings(limits=LimitSettings(max_query_chars=5))
    assert validate_query("🐶🐶🐶🐶🐶", "query", settings)
    with pytest.raises(qtm.InvalidQuery, match=r"query has 6 characters; limits\.maxQueryChars allows 5"):
        validate_query("🐶" * 6, "query", settings)


@given(st.text())
def test_any_text_is_searchable_or_refused(text: str) -> None:
    try:
        assert validate_query(text, "query", Settings()) is text
    except qtm.InvalidQuery:
        assert not text.strip()


@pytest.mark.parametrize(
    ("apply_to", "text", "keywords"),
    [
        ("keywords", QUERY, "jaco health concerns"),
        ("text", "jaco health concerns", "jaco health concerns"),
        ("both", "jaco health concerns", "jaco health concerns"),
    ],
)
def test_a_question_has_two_faces(apply_to: Any, text: str, keywords: str) -> None:
    query = prepare_query(QUERY, Settings(preprocess=PreprocessSettings(apply_to=apply_to)))
    assert (query.original, query.text, query.keywords, query.language) == (QUERY, text, keywords, "en")


def test_without_rules_a_question_is_its_own_face() -> None:
    query = prepare_query(QUERY, Settings(preprocess=PreprocessSettings(enabled=False, apply_to="both")))
    assert (query.text, query.keywords, query.language) == (QUERY, QUERY, "")


@given(st.text(min_size=1).filter(lambda text: not text.isspace()))
def test_no_face_of_a_question_is_ever_blank(text: str) -> None:
    for apply_to in ("keywords", "both"):
        query = prepare_query(text, Settings(preprocess=PreprocessSettings(apply_to=apply_to)))
        assert query.original == text
        assert query.text.strip()
