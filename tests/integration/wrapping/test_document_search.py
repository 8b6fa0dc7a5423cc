"""Pinecone's document search over the real SDK and real HTTP: the text in its clauses is the question."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pinecone import (
    AsyncIndex,
    DenseVectorQuery,
    EmbedQuery,
    QueryStringQuery,
    SparseEmbedQuery,
    SparseVectorQuery,
    TextQuery,
)
from pinecone.exceptions import PineconeException
from pinecone.models.documents.responses import SearchDocumentsResponse

import qtmiddleware as qtm
from tests.support.document_world import add_documents, embed, list_ids
from tests.support.pinecone_world import PineconeWorld, pinecone_world
from tests.support.wrapping_world import QUERY, REWRITE, WIDE, middleware

RULES = qtm.QueryMiddleware()
CALL: dict[str, Any] = {"namespace": "docs", "top_k": 2, "include_fields": ["title", "body"]}
CLAUSES: dict[str, Callable[[Any], list[Any]]] = {
    "embed": lambda text: [EmbedQuery(field="body", query=text)],
    "embed, mapping": lambda text: [{"type": "embed", "field": "body", "query": text}],
    "sparse_embed": lambda text: [SparseEmbedQuery(field="body", query=text)],
    "text": lambda text: [TextQuery(query=text, fields=["title", "body"])],
    "text, mapping": lambda text: [{"type": "text", "fields": ["body"], "query": text}],
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
    assert retrieval.status == "full"
    assert (retrieval.original_query, [it.kind for it in retrieval.variants]) == (
        QUERY,
        ["original", "rewrite"],
    )
    assert type(retrieval.response) is SearchDocumentsResponse
    assert clauses == before, "the caller's clauses stay as they are"
    asked = world.sent("/search")
    # A question mark is a wildcard in a query string, so what is written there has none; the
    # caller's own stays.
    plain = REWRITE.removesuffix("?")
    variant = {"query_string": [plain], "text and query_string": [REWRITE, plain]}.get(
        kind, [REWRITE]
    )
    assert sorted(map(list_texts, asked)) == sorted([[QUERY] * len(clauses), variant])
    for body in asked:
        assert (body["top_k"], body["include_fields"], body["filter"]) == (
            WIDE,
            ["title", "body"],
            {"page": {"$lt": 9}},
        )
    assert (retrieval.trace.searches, retrieval.trace.read_units) == (2, 2)


async def test_the_async_index_gives_the_same_account(world: PineconeWorld, index: Any) -> None:
    call = call_with(CLAUSES["embed"](QUERY))
    plain = middleware().wrap(index.documents.search).retrieve(**call)
    async with AsyncIndex(
        host=world.host("docs"), api_key=world.api_key, ssl_verify=False
    ) as other:
        search = middleware().wrap(other.documents.search)
        awaited = await search.aretrieve(**call)
        assert list_ids(await search(**call)) == list_ids(plain.response)
    assert awaited.matches == plain.matches
    assert (awaited.variants, awaited.status) == (plain.variants, plain.status)


def test_a_function_that_builds_the_clause_or_passes_it_on_is_decorated(
    world: PineconeWorld, index: Any
) -> None:
    @qtm.middleware
    def ask(query: str, top_k: int = 2) -> Any:
        return index.documents.search(
            **call_with([EmbedQuery(field="body", query=query)], top_k=top_k)
        )

    @qtm.middleware
    def search(score_by: list[Any], top_k: int = 2) -> Any:
        return index.documents.search(**call_with(score_by, top_k=top_k))

    @qtm.middleware
    def pass_on(**options: Any) -> Any:
        return index.documents.search(namespace="docs", **options)

    clauses = CLAUSES["embed"](QUERY)
    expected = ["health", "cats"]
    assert (
        list_ids(ask(QUERY))
        == list_ids(search(clauses))
        == list_ids(search(score_by=clauses))
        == expected
    )
    assert list_ids(pass_on(score_by=clauses, top_k=2, include_fields=["body"])) == expected
    assert {body["top_k"] for body in world.sent("/search")} == {WIDE}


def test_a_partial_may_fix_namespace_fields_and_clause(world: PineconeWorld, index: Any) -> None:
    expected = ["health", "cats"]
    fixed = functools.partial(index.documents.search, **CALL)
    assert list_ids(RULES.wrap(fixed)(score_by=CLAUSES["embed"](QUERY))) == expected
    assert list_ids(RULES.wrap(fixed)(score_by=CLAUSES["embed"](QUERY), top_k=1)) == expected[:1]
    clause = [{"type": "embed", "field": "body"}]
    search = RULES.wrap(functools.partial(fixed, score_by=clause))
    assert list_ids(search(QUERY)) == list_ids(search(query=QUERY)) == expected
    assert [
        list_ids(it.response)[0] for it in search.retrieve_many([QUERY, "When is the fee due?"])
    ] == [
        "health",
        "fees",
    ]
    assert clause == [{"type": "embed", "field": "body"}]
    whole = RULES.wrap(functools.partial(fixed, score_by=CLAUSES["embed"](QUERY)))
    assert list_ids(whole()) == expected


def test_a_text_goes_where_a_vector_clause_wants_its_values(
    world: PineconeWorld, index: Any
) -> None:
    search = middleware().wrap(index.documents.search, embed=embed)
    for clause in (
        DenseVectorQuery(field="vec", values=QUERY),
        {"type": "dense_vector", "field": "vec", "values": QUERY},
    ):  # type: ignore[arg-type]
        retrieval = search.retrieve(**call_with([clause]))
        assert (retrieval.status, len(retrieval.variants)) == ("full", 2)
    sent = [body["score_by"][0]["values"] for body in world.sent("/search")]
    assert sorted(sent) == sorted([embed(QUERY), embed(REWRITE)] * 2)
    # A clause of another kind takes its text as it is, though the function is wrapped with embed=.
    assert search.retrieve(**call_with(CLAUSES["embed"](QUERY))).status == "full"


def test_a_sparse_clause_takes_what_is_not_zero_of_the_vector(
    world: PineconeWorld, index: Any
) -> None:
    search = RULES.wrap(
        index.documents.search, embed=lambda text: [0.0, float(len(text)), 0.0, 2.0]
    )
    search(**call_with([SparseVectorQuery(field="terms", sparse_values=QUERY)]))  # type: ignore[arg-type]
    assert world.sent("/search")[0]["score_by"][0]["sparse_values"] == {
        "indices": [1, 3],
        "values": [float(len(QUERY)), 2.0],
    }


NO_QUESTIONS: dict[str, tuple[list[Any], str]] = {
    "a quoted query string": ([QueryStringQuery(query='"Jaco health"')], "lucene"),
    "a query string with a field": ([QueryStringQuery(query="title:Jaco")], "lucene"),
    "a vector": ([DenseVectorQuery(field="vec", values=[1.0, 2.0])], "not_text"),
    "two questions": (
        [TextQuery(query="Jaco", fields=["title"]), TextQuery(query="food", fields=["body"])],
        "several_questions",
    ),
}


@pytest.mark.parametrize("name", NO_QUESTIONS)
@pytest.mark.parametrize("options", [{}, {"embed": embed}], ids=["text", "embed"])
def test_what_is_no_question_is_searched_as_it_was_passed(
    name: str, options: Any, world: PineconeWorld, index: Any
) -> None:
    clauses, reason = NO_QUESTIONS[name]
    plain = list_ids(index.documents.search(**call_with(clauses)))
    search = middleware().wrap(index.documents.search, **options)
    retrieval = search.retrieve(**call_with(clauses))
    assert list_ids(retrieval.response) == plain
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("query", reason)]
    first, second = world.sent("/search")
    assert first == second


BAD: dict[str, dict[str, Any]] = {
    "a vector clause beside another": {
        "score_by": [*CLAUSES["embed"](QUERY), *CLAUSES["text"](QUERY)]
    },
    "an unknown type": {"score_by": [{"type": "guess", "query": QUERY}]},
    "a field without the aspect": {"score_by": [EmbedQuery(field="title", query=QUERY)]},
    "a blank namespace": {"score_by": CLAUSES["embed"](QUERY), "namespace": " "},
}


@pytest.mark.parametrize("case", BAD)
def test_the_sdks_own_error_reaches_the_caller(case: str, world: PineconeWorld, index: Any) -> None:
    call = {**CALL, **BAD[case]}
    with pytest.raises(PineconeException) as plain:
        index.documents.search(**call)
    with pytest.raises(PineconeException) as wrapped:
        RULES.wrap(index.documents.search)(**call)
    assert type(wrapped.value) is type(plain.value)
    assert str(wrapped.value) == str(plain.value)
