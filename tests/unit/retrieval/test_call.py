"""What a question must be, and what it becomes before anything is searched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.config.settings import (
    KeywordEvidenceSettings,
    PreprocessSettings,
    Settings,
)
from qtmiddleware.retrieval.call import (
    MAX_CANDIDATE_CHARS,
    Call,
    prepare_query,
    validate_query,
)
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.responses import read_passage
from qtmiddleware.types import Passage

QUERY = "Does Jaco have any health concerns?"


class Text(str):
    """A text of an own type."""

    __slots__ = ()


def test_a_text_is_given_back_as_it_is() -> None:
    own = Text("Jaco")
    assert validate_query(own, "query") is own


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000", "\u2028"])
def test_a_blank_text_is_refused(blank: str) -> None:
    with pytest.raises(qtm.InvalidQuery, match=r"^question must not be blank$") as caught:
        validate_query(blank, "question")
    assert caught.value.argument == "question"


@given(
    st.one_of(
        st.none(),
        st.integers(),
        st.floats(),
        st.binary(),
        st.lists(st.text()),
        st.dictionaries(st.text(), st.text()),
    )
)
def test_what_is_no_text_is_refused_without_showing_it(value: Any) -> None:
    with pytest.raises(qtm.InvalidQuery) as caught:
        validate_query(value, "query")
    assert str(caught.value) == f"query must be text, not {type(value).__name__}"


def test_the_length_is_counted_in_characters() -> None:
    assert validate_query("🐶" * 8_000, "query")
    with pytest.raises(qtm.InvalidQuery, match="query has 8,001 characters; the limit is 8,000"):
        validate_query("🐶" * 8_001, "query")


@given(st.text())
def test_any_text_is_searchable_or_refused(text: str) -> None:
    try:
        assert validate_query(text, "query") is text
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
    assert (query.original, query.text, query.keywords, query.language) == (
        QUERY,
        text,
        keywords,
        "en",
    )


def test_without_rules_a_question_is_its_own_face() -> None:
    query = prepare_query(
        QUERY, Settings(preprocess=PreprocessSettings(enabled=False, apply_to="both"))
    )
    assert (query.text, query.keywords, query.language) == (QUERY, QUERY, "")


@given(st.text(min_size=1).filter(lambda text: not text.isspace()))
def test_no_face_of_a_question_is_ever_blank(text: str) -> None:
    for apply_to in ("keywords", "both"):
        query = prepare_query(text, Settings(preprocess=PreprocessSettings(apply_to=apply_to)))
        assert query.original == text
        assert query.text.strip()


# --- how many passages are asked for --------------------------------------------------------------


def make_call(top_k: int | None = 4, **options: Any) -> Call:
    settings = Settings(keyword_evidence=KeywordEvidenceSettings(**options))
    engine = qtm.QueryMiddleware(settings).engine
    return Call(QUERY, (), engine.settings, Learned(), engine, top_k=top_k)


def list_passages(*lengths: int) -> list[Passage]:
    return list(
        map(read_passage, [{"id": str(n), "text": "x" * it} for n, it in enumerate(lengths)])
    )


@given(
    st.lists(st.lists(st.integers(0, 10**5), max_size=60), max_size=3),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_never_fewer_passages_are_asked_for_than_by_the_caller_nor_more_than_set(
    lists: list[list[int]], top_k: int, candidates: int
) -> None:
    call = make_call(top_k, candidates=candidates)
    for lengths in lists:
        call.learned.update_average_length(list_passages(*lengths))
        assert call.search_width is None or top_k < call.search_width <= candidates
        assert (
            call.search_width is None
            or call.search_width * call.learned.passage_chars <= MAX_CANDIDATE_CHARS + 1
        )


@pytest.mark.parametrize(
    ("length", "width"), [(800, 50), (2_000, 50), (19_900, 50), (40_000, 24), (300_000, None)]
)
def test_of_long_passages_fewer_are_asked_for(length: int, width: int | None) -> None:
    call = make_call()
    assert call.search_width == 50
    call.learned.update_average_length(list_passages(*[length] * 50))
    assert (call.search_width, call.full_search_width) == (width, 50)


def test_one_list_of_odd_passages_does_not_narrow_the_next_search_much() -> None:
    call = make_call()
    call.learned.update_average_length(list_passages(*[1_000] * 50))
    call.learned.update_average_length(list_passages(*[100_000] * 50))
    assert call.search_width == 50
    for _ in range(60):
        call.learned.update_average_length(list_passages(*[100_000] * 50))
    assert call.search_width == 10


@pytest.mark.parametrize("items", [[], [{"id": "a"}], ["a"]])
def test_a_list_that_tells_no_length_narrows_nothing(items: list[Any]) -> None:
    call = make_call()
    call.learned.update_average_length(list(map(read_passage, items)))
    assert call.search_width == 50
