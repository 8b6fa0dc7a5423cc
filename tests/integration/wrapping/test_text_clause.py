"""``hybrid.textFields`` around the real Pinecone SDK: the keywords are searched beside the clause of the call."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from pinecone import (
    EmbedQuery,
    QueryStringQuery,
    TextQuery,
)
from pinecone.models.documents.responses import SearchDocumentsResponse

import qtmiddleware as qtm
from tests.support.document_world import SCHEMA, add_documents, build_documents, list_ids
from tests.support.pinecone_world import PineconeWorld, pinecone_world
from tests.support.wrapping_world import QUERY, WIDE

FIELDS: dict[str, Any] = {"hybrid": {"textFields": ["title", "body"]}}
KEYWORDS = "jaco health concerns"
CALL: dict[str, Any] = {
    "namespace": "docs",
    "top_k": 2,
    "score_by": [EmbedQuery(field="body", query=QUERY)],
    "include_fields": ["body"],
    "filter": {"page": {"$lt": 9}},
}
CLAUSE = {"type": "text", "query": KEYWORDS, "fields": ["title", "body"]}


@pytest.fixture
def world() -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        add_documents(made)
        yield made


@pytest.fixture
def index(world: PineconeWorld) -> Any:
    return world.index("docs")


def list_types(world: PineconeWorld) -> list[str]:
    return [body["score_by"][0]["type"] for body in world.sent("/search")]


def test_the_keywords_are_searched_with_everything_else_as_the_caller_said(
    world: PineconeWorld, index: Any
) -> None:
    retrieval = qtm.QueryMiddleware(FIELDS).wrap(index.documents.search).retrieve(**CALL)
    bodies = sorted(world.sent("/search"), key=lambda it: str(it["score_by"][0]["type"]))
    same = {"top_k": WIDE, "include_fields": ["body"], "filter": {"page": {"$lt": 9}}}
    assert bodies == [
        {"score_by": [{"type": "embed", "query": QUERY, "field": "body"}], **same},
        {"score_by": [CLAUSE], **same},
    ]
    assert (retrieval.trace.searches, retrieval.trace.read_units) == (2, 2)
    assert [(it.kind, it.text) for it in retrieval.variants] == [
        ("original", QUERY),
        ("text_clause", KEYWORDS),
    ]
    assert retrieval.matches[0].found_by == ("original", "text_clause")
    assert (retrieval.status, list_ids(retrieval.response)) == ("full", ["health", "cats"])
    assert type(retrieval.response) is SearchDocumentsResponse


def test_a_passage_that_words_alone_find_has_the_lowest_score_of_the_call(
    world: PineconeWorld,
) -> None:
    documents = build_documents()
    # No word in common with the question but one that vectors of three passages do not bring.
    documents.append(
        {**documents[0], "_id": "rare", "body": "Zyx", "title": "concerns jaco health"}
    )
    world.add_documents("docs", SCHEMA, documents)
    search = world.index("docs").documents.search
    call = {**CALL, "top_k": 3, "filter": {"page": {"$lt": 9}}}
    config = {**FIELDS, "keywordEvidence": {"enabled": False}, "preprocess": {"enabled": True}}
    retrieval = qtm.QueryMiddleware(config).wrap(search).retrieve(**call)
    plain = [match.score for match in search(**call).matches]
    found = {match.id: match for match in retrieval.matches}
    assert "rare" in found
    assert found["rare"].found_by == ("text_clause",)
    shown = {document.id: document.score for document in retrieval.response.matches}
    assert shown["rare"] <= min(plain)


@pytest.mark.parametrize(
    "score_by",
    [
        [TextQuery(query=QUERY, fields=["body"])],
        [QueryStringQuery(query=QUERY)],
        [QueryStringQuery(query="title:Jaco")],
    ],
    ids=["text", "query_string", "lucene"],
)
def test_a_search_by_words_gets_no_second_one(
    score_by: list[Any], world: PineconeWorld, index: Any
) -> None:
    qtm.QueryMiddleware(FIELDS).wrap(index.documents.search)(**{**CALL, "score_by": score_by})
    assert len(world.sent("/search")) == 1


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"hybrid": {"textFields": []}}, 1),
        ({**FIELDS, "limits": {"maxSearches": 1}}, 1),
        ({**FIELDS, "preprocess": {"enabled": False}}, 1),
        ({**FIELDS, "fusion": {"method": "max"}}, 1),
        ({**FIELDS, "fusion": {"method": "rrf"}}, 2),
    ],
)
def test_settings_that_leave_no_place_for_it_leave_it_out(
    config: dict[str, Any], sent: int, world: PineconeWorld, index: Any
) -> None:
    qtm.QueryMiddleware(config).wrap(index.documents.search)(**CALL)
    assert len(world.sent("/search")) == sent


@pytest.mark.parametrize("fields", [["vec"], ["title", "nowhere"]])
def test_a_clause_that_is_refused_is_not_tried_again(
    fields: list[str], world: PineconeWorld, index: Any
) -> None:
    search = qtm.QueryMiddleware({"hybrid": {"textFields": fields}}).wrap(index.documents.search)
    expected = list_ids(qtm.QueryMiddleware().wrap(index.documents.search)(**CALL))
    with pytest.warns(qtm.SetupWarning, match=r"hybrid\.textFields"):
        first = search.retrieve(**CALL)
    second = search.retrieve(**CALL)
    assert [(it.stage, it.reason) for it in first.degradations] == [
        ("search.text_clause", "failed")
    ]
    assert (second.status, second.trace.searches) == ("full", 1)
    assert (
        "text_clause",
        "not searched: the function rejected a text clause",
    ) in second.trace.notes
    assert list_ids(first.response) == list_ids(second.response) == expected
    assert list_types(world).count("text") == 1


def read_findings(check: Any) -> dict[str, Any]:
    return {finding.subject: finding for finding in check.findings}


def test_check_names_the_clause_and_the_field_of_the_texts(index: Any) -> None:
    found = read_findings(qtm.QueryMiddleware().wrap(index.documents.search).check(**CALL))
    assert found["query"].text == "passed as text in `score_by`, in the `embed` clause over `body`"
    assert found["query"].values["clauses"] == ["embed"]
    assert found["text"].values["field"] == "body"
    partial = functools.partial(index.documents.search, **CALL)
    assert read_findings(qtm.QueryMiddleware().wrap(partial).check())["query"] == found["query"]


@pytest.mark.parametrize("fields", [None, ["title"]])
def test_check_says_what_to_write_where_the_texts_are_not_requested(
    fields: Any, index: Any
) -> None:
    check = (
        qtm.QueryMiddleware()
        .wrap(index.documents.search)
        .check(**{**CALL, "include_fields": fields})
    )
    text = read_findings(check)["text"]
    assert text.state == "problem"
    assert text.fix == 'add "body" to include_fields'
