"""Pinecone's document search over the real SDK and real HTTP: the text in its clauses is the question."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pinecone import (
    DenseVectorQuery,
    EmbedQuery,
    QueryStringQuery,
    SparseEmbedQuery,
    TextQuery,
)
from pinecone.models.documents.responses import SearchDocumentsResponse

import qtmiddleware as qtm
from tests.support.document_world import (
    add_documents,
    embed,
    list_ids,
)
from tests.support.pinecone_world import PineconeWorld, pinecone_world
from tests.support.wrapping_world import QUERY, REWRITE, WIDE, middleware

RULES = qtm.QueryMiddleware()
CALL: dict[str, Any] = {"namespace": "docs", "top_k": 2, "include_fields": ["title", "body"]}
CLAUSES: dict[str, Callable[[Any], list[Any]]] = {
    "embed": lambda text: [EmbedQuery(field="body", query=text)],
    "embed, mapping": lambda text: [{"type": "embed", "field": "body", "query": text}],
    "sparse_embed": lambda text: [SparseEmbedQuery(field="body", query=text)],
    "text": lambda text: [TextQuery(query=text, fields=["title", "body"])],
    "query_string": lambda text: [QueryStringQuery(query=text)],
    "text and query_string": lambda text: [
        TextQuery(query=text, fields=["body"]),
        {"type": "query_string", "query": text},
    ],
}


@pytest.fixture
def world() -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        add_documents(made)
        yield made


@pytest.fixture
def index(world: PineconeWorld) -> Any:
    return world.index("docs")


def list_texts(body: dict[str, Any]) -> list[str]:
    return [clause["query"] for clause in body["score_by"]]


def call_with(score_by: Any, **changes: Any) -> dict[str, Any]:
    return {**CALL, "score_by": score_by, **changes}


@pytest.mark.parametrize("kind", CLAUSES)
def test_a_variant_stands_where_the_question_stood(
    kind: str, world: PineconeWorld, index: Any
) -> None:
    clauses = CLAUSES[kind](QUERY)
    before = copy.deepcopy(clauses)
    call = call_with(clauses, filter={"page": {"$lt": 9}}, timeout=20.0)
    retrieval = middleware().wrap(index.documents.search).retrieve(**call)
    assert (retrieval.status, retrieval.original_query) == ("full", QUERY)
    assert [it.kind for it in retrieval.variants] == ["original", "rewrite"]
    assert type(retrieval.response) is SearchDocumentsResponse
    assert clauses == before, "the caller's clauses stay as they are"
    asked = world.sent("/search")
    # A question mark is a wildcard in a query string, so what is written there has none; the
    # caller's own stays.
    plain = REWRITE.removesuffix("?")
    strings = {"query_string": [plain], "text and query_string": [REWRITE, plain]}
    variant = strings.get(kind, [REWRITE])
    assert sorted(map(list_texts, asked)) == sorted([[QUERY] * len(clauses), variant])
    passed = {"top_k": WIDE, "include_fields": ["title", "body"], "filter": {"page": {"$lt": 9}}}
    assert all(body.items() >= passed.items() for body in asked)
    assert retrieval.trace.searches == 2


def test_a_partial_may_fix_namespace_fields_and_clause(index: Any) -> None:
    expected = ["health", "cats"]
    fixed = functools.partial(index.documents.search, **CALL)
    assert list_ids(RULES.wrap(fixed)(score_by=CLAUSES["embed"](QUERY), top_k=1)) == expected[:1]
    clause = [{"type": "embed", "field": "body"}]
    search = RULES.wrap(functools.partial(fixed, score_by=clause))
    assert list_ids(search(QUERY)) == list_ids(search(query=QUERY)) == expected
    many = search.retrieve_many([QUERY, "When is the fee due?"])
    assert [list_ids(it.response)[0] for it in many] == ["health", "fees"]
    assert clause == [{"type": "embed", "field": "body"}]
    whole = RULES.wrap(functools.partial(fixed, score_by=CLAUSES["embed"](QUERY)))
    assert list_ids(whole()) == expected


def test_a_text_goes_where_a_vector_clause_wants_its_values(
    world: PineconeWorld, index: Any
) -> None:
    search = middleware().wrap(index.documents.search, embed=embed)
    clause: Any = DenseVectorQuery(field="vec", values=QUERY)  # type: ignore[arg-type]
    search(**call_with([clause]))
    sent = [body["score_by"][0]["values"] for body in world.sent("/search")]
    assert sorted(sent) == sorted([embed(QUERY), embed(REWRITE)])
    # A clause of another kind takes its text as it is, though the function is wrapped with embed=.
    assert search.retrieve(**call_with(CLAUSES["embed"](QUERY))).status == "full"


NO_QUESTIONS: dict[str, list[Any]] = {
    "lucene": [QueryStringQuery(query="title:Jaco")],
    "not_text": [DenseVectorQuery(field="vec", values=[1.0, 2.0])],
    "several_questions": [
        TextQuery(query="Jaco", fields=["title"]),
        TextQuery(query="food", fields=["body"]),
    ],
}


@pytest.mark.parametrize("reason", NO_QUESTIONS)
@pytest.mark.parametrize("options", [{}, {"embed": embed}], ids=["text", "embed"])
def test_what_is_no_question_is_searched_as_it_was_passed(
    reason: str, options: Any, world: PineconeWorld, index: Any
) -> None:
    clauses = NO_QUESTIONS[reason]
    plain = list_ids(index.documents.search(**call_with(clauses)))
    search = middleware().wrap(index.documents.search, **options)
    retrieval = search.retrieve(**call_with(clauses))
    assert list_ids(retrieval.response) == plain
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("query", reason)]
    first, second = world.sent("/search")
    assert first == second
