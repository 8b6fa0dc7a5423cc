"""The clauses of a document search: the question in them, and a copy with another one."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pinecone import DenseVectorQuery, EmbedQuery, QueryStringQuery, TextQuery

from qtmiddleware.wrapping.clauses import (
    NoQuestion,
    find_lucene_operator,
    read_clause_type,
    read_question,
    replace_question,
)

TEXTS = st.text(min_size=1, max_size=40)
SEVERAL = st.lists(
    st.sampled_from(
        [
            lambda text: TextQuery(query=text, fields=["body"]),
            lambda text: {"type": "text", "query": text, "fields": ["title"]},
            lambda text: QueryStringQuery(query=text),
        ]
    ),
    min_size=1,
    max_size=4,
)
ALONE = st.sampled_from(
    [
        lambda text: EmbedQuery(field="body", query=text),
        lambda text: SimpleNamespace(type="embed", fields=["body"], query=text),
        lambda text: DenseVectorQuery(field="vec", values=text),
    ]
).map(lambda made: [made])


@given(made=SEVERAL | ALONE, question=TEXTS, other=TEXTS)
def test_the_question_is_read_and_a_copy_holds_another_one(
    made: list[Any], question: str, other: str
) -> None:
    held = [make(question) for make in made]
    before = copy.deepcopy(held)
    is_string = any(read_clause_type(clause) == "query_string" for clause in held)
    if not (is_string and find_lucene_operator(question)):
        assert read_question(held) == question
    changed = replace_question(held, other)
    assert held == before
    assert [type(clause) for clause in changed] == [type(clause) for clause in held]
    for clause in changed:
        if read_clause_type(clause) != "query_string":
            assert read_question([clause]) == other
        elif other != question:
            assert not find_lucene_operator(clause.query) or clause.query == other


@pytest.mark.parametrize("questions", [["a"], ({"text": "a"},)])
def test_a_list_of_questions_may_stand_where_a_vector_is_wanted(questions: Any) -> None:
    clause = {"type": "dense_vector", "field": "vec", "values": questions}
    assert read_question([clause]) == questions


@pytest.mark.parametrize(
    ("clauses", "reason"),
    [
        ([{"type": "dense_vector", "field": "vec", "values": []}], "not_text"),
        ([{"type": "embed", "field": "body"}], "missing"),
        ([{"type": "guess", "query": "a"}], "missing"),
        ([{"type": "text", "query": "a"}, {"type": "text", "query": "b"}], "several_questions"),
        ([{"type": "query_string", "query": "a:b"}], "lucene"),
    ],
)
def test_the_reason_says_why_there_is_no_question(clauses: list[Any], reason: str) -> None:
    with pytest.raises(NoQuestion) as caught:
        read_question(clauses)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.reason, str(again)) == (reason, str(caught.value))
