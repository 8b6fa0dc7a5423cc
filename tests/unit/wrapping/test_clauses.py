"""The clauses of a document search: what is read out of them, and what a copy with another text is."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pinecone import DenseVectorQuery, EmbedQuery, QueryStringQuery, SparseVectorQuery, TextQuery
from pinecone.models.vectors.sparse import SparseValues

from qtmiddleware.wrapping.clauses import (
    ClauseProblem,
    are_valid_clauses,
    are_vector_clauses,
    can_add_text_clause,
    find_lucene_operator,
    list_searched_fields,
    read_clause_type,
    read_question,
    replace_question,
    strip_lucene_syntax,
)
from qtmiddleware.wrapping.signatures import QUERIES, read_signature

TEXTS = st.text(min_size=1, max_size=40)
SEVERAL = st.lists(
    st.sampled_from(
        [
            lambda text: TextQuery(query=text, fields=["body"]),
            lambda text: {"type": "text", "query": text, "fields": ["title"]},
            lambda text: QueryStringQuery(query=text),
            lambda text: {"type": "query_string", "query": text},
        ]
    ),
    min_size=1,
    max_size=4,
)
ALONE = st.sampled_from(
    [
        lambda text: EmbedQuery(field="body", query=text),
        lambda text: {"type": "sparse_embed", "field": "body", "query": text},
        lambda text: SimpleNamespace(type="embed", fields=["body"], query=text),
        lambda text: DenseVectorQuery(field="vec", values=text),
        lambda text: {"type": "sparse_vector", "field": "vec", "sparse_values": text},
    ]
).map(lambda made: [made])
LISTS = st.one_of(SEVERAL, ALONE)


@given(made=LISTS, question=TEXTS, other=TEXTS, is_tuple=st.booleans())
def test_a_copy_holds_the_other_text_and_the_callers_clauses_stay(
    made: list[Any], question: str, other: str, is_tuple: bool
) -> None:
    held: Any = [make(question) for make in made]
    held = tuple(held) if is_tuple else held
    before = copy.deepcopy(held)
    changed = replace_question(held, other)
    assert held == before
    assert (type(changed), len(changed)) == (type(held), len(held))
    assert [type(it) for it in changed] == [type(it) for it in held]
    assert list_searched_fields(changed) == list_searched_fields(held)
    for clause, old in zip(changed, held, strict=True):
        if read_clause_type(clause) != "query_string":
            assert read_question([clause]) == other
        elif other != question:
            text = clause["query"] if isinstance(clause, dict) else clause.query
            assert not find_lucene_operator(text) or text == other
        else:
            assert clause is old


@given(made=LISTS, question=TEXTS)
def test_the_question_is_read_as_it_was_put(made: list[Any], question: str) -> None:
    held = [make(question) for make in made]
    if any(read_clause_type(clause) == "query_string" for clause in held) and find_lucene_operator(
        question
    ):
        with pytest.raises(ClauseProblem) as caught:
            read_question(held)
        assert (caught.value.reason, caught.value.clause_value) == ("lucene", question)
    else:
        assert read_question(held) == question


@given(st.text() | st.text(alphabet='{}[]()-+~*?:^/\\"&|! aA'))
@example("{-")
def test_what_is_written_plain_has_no_syntax_and_loses_no_word(text: str) -> None:
    plain = strip_lucene_syntax(text)
    assert not find_lucene_operator(plain) or plain == text
    assert [it for it in plain.casefold() if it.isalnum()] == [
        it for it in text.casefold() if it.isalnum()
    ]


@pytest.mark.parametrize(
    "text",
    [
        "What is Nike's strategy?",
        "state-of-the-art dogs",
        "C+ and B-",
        "and or not",
        "Wo??",
        "3.5 % of 12,000",
        "café",
    ],
)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert not find_lucene_operator(text)
    assert read_question([QueryStringQuery(query=text)]) == text


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            [],
            (),
            "text",
            b"text",
            3,
            iter([{"type": "text"}]),
            {"type": "text", "query": "a"},
        ),
        *([{}], [None], ["text"], [{"type": 3}], [{"type": "guess"}], [object()]),
        [{"type": "embed", "query": "a"}, {"type": "text", "query": "a"}],
        [{"type": "embed", "query": "a"}, {"type": "embed", "query": "a"}],
    ],
    ids=lambda it: type(it).__name__,
)
def test_what_is_no_list_of_clauses_is_left_alone(value: Any) -> None:
    assert not are_valid_clauses(value)
    assert replace_question(value, "other") is value
    assert not can_add_text_clause(value)
    assert not are_vector_clauses(value)
    with pytest.raises(ClauseProblem) as caught:
        read_question(value)
    assert caught.value.reason == "missing"


def test_an_iterator_of_clauses_is_not_used_up() -> None:
    clauses = iter([EmbedQuery(field="body", query="a")])
    are_valid_clauses(clauses)
    assert len(list(clauses)) == 1


def test_a_vector_goes_where_the_clause_holds_one() -> None:
    dense, sparse = (
        DenseVectorQuery(field="vec", values=[1.0]),
        {"type": "sparse_vector", "sparse_values": "text"},
    )
    assert replace_question([dense], [2.0, 3.0])[0].values == [2.0, 3.0]
    assert replace_question([sparse], [0.0, 2.0])[0]["sparse_values"] == {
        "indices": [1],
        "values": [2.0],
    }
    assert dense.values == [1.0]


@pytest.mark.parametrize(
    ("clauses", "reason"),
    [
        ([DenseVectorQuery(field="vec", values=[1.0])], "not_text"),
        (
            [SparseVectorQuery(field="vec", sparse_values=SparseValues(indices=[1], values=[1.0]))],
            "not_text",
        ),
        ([{"type": "dense_vector", "field": "vec", "values": []}], "not_text"),
        ([{"type": "embed", "field": "body"}], "missing"),
        ([{"type": "text", "query": "a"}, {"type": "text", "query": "b"}], "several_questions"),
        ([{"type": "query_string", "query": "a:b"}], "lucene"),
    ],
)
def test_the_reason_says_why_there_is_no_question(clauses: list[Any], reason: str) -> None:
    with pytest.raises(ClauseProblem) as caught:
        read_question(clauses)
    assert caught.value.reason == reason


def test_a_function_that_takes_a_text_beside_score_by_is_passed_the_text() -> None:
    signature = read_signature(lambda query, score_by="bm25": None)
    assert signature.argument == "query"
    assert signature.choose_signature(("q",), {}).read_query(("q",), {}) == "q"


def test_a_function_that_shows_nothing_takes_clauses_or_a_text() -> None:
    def search(*args: Any, **kwargs: Any) -> None: ...

    signature, clauses = read_signature(search), [{"type": "embed", "query": "a"}]
    call = signature.choose_signature((), {"score_by": clauses, "top_k": 3})
    assert call.read_query((), {"score_by": clauses}) == "a"
    assert call.read_top_k((), {"score_by": clauses, "top_k": 3}) == 3
    assert call.replace_arguments((), {"score_by": clauses, "top_k": 3}, query="b", top_k=9) == (
        (),
        {"score_by": [{"type": "embed", "query": "b"}], "top_k": 9},
    )
    for kwargs in (
        {"query": "q"},
        {"query": "q", "score_by": "bm25"},
        {"query": "q", "score_by": clauses},
    ):
        assert signature.choose_signature((), kwargs).read_query((), kwargs) == "q"
    assert "query" in QUERIES


def test_arguments_of_a_call_stay_as_they_are() -> None:
    signature = read_signature(lambda *, score_by, top_k=4, include_fields=None: None)
    kwargs = {"score_by": [{"type": "embed", "query": "a"}], "include_fields": ["title"]}
    before = copy.deepcopy(kwargs)
    _, changed = signature.replace_arguments((), kwargs, query="b", top_k=50)
    assert kwargs == before
    assert (changed["score_by"][0]["query"], changed["top_k"]) == ("b", 50)
    assert signature.find_unrequested_field((), kwargs, "body") == "body"
    for field in ("title", None, ""):
        assert signature.find_unrequested_field((), kwargs, field) == ""
