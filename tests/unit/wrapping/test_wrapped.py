"""What a wrapped function returns, and what it leaves alone."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import (
    HISTORY,
    PASSAGES,
    QUERY,
    REPLIES,
    Way,
    every_way,
    off,
    scripted,
    search,
    transforming,
)

visible: ContextVar[str] = ContextVar("visible", default="unset")


# --- the fields of a retrieval --------------------------------------------------------------------


@every_way
def test_a_retrieval_tells_everything(way: Way) -> None:
    retrieval = way.wrap(config=transforming("rewrite")).retrieve(QUERY, top_k=2)
    best = retrieval.matches[0]
    assert (best.id, best.namespace, best.text) == ("health", "__default__", PASSAGES["health"])
    assert best.score == next(row["score"] for row in search(QUERY, 8) if row["id"] == "health")
    assert best.fused_score is not None
    assert best.fused_score != best.score
    assert best.metadata == {"text": PASSAGES["health"]}
    assert best.found_by == ("original", "rewrite")
    assert [match.raw for match in retrieval.matches] == retrieval.response
    assert retrieval.variants == (
        qtm.Variant("original", QUERY, 1.0),
        qtm.Variant("rewrite", REPLIES["rewrite"]["rewrite"], 0.6),
    )
    assert (retrieval.status, retrieval.degradations) == ("full", ())
    assert retrieval.transformation == qtm.Transformation(rewrite=REPLIES["rewrite"]["rewrite"])
    assert {stage.name for stage in retrieval.trace.stages} >= {
        *(
            "preprocess",
            "search.original",
            "transform.rewrite",
            "search.variants",
            "fuse",
            "keyword_evidence",
        )
    }


@every_way
@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "no ids"])
def test_no_repr_shows_a_text(with_ids: bool, way: Way) -> None:
    def respond(query: str, top_k: int) -> Any:
        rows = search(query, top_k)
        return (
            rows
            if with_ids
            else [{"text": row["metadata"]["text"], "score": row["score"]} for row in rows]
        )

    retrieval = way.wrap(respond, config=transforming("combined")).retrieve(QUERY)
    parts = [
        *retrieval.matches,
        *retrieval.variants,
        *retrieval.rankings,
        retrieval.transformation,
        retrieval.trace,
    ]
    shown = " ".join(map(repr, [retrieval, *parts]))
    for text in ("Jaco", "dog", "shelter"):
        assert text not in shown


# --- nothing is changed ---------------------------------------------------------------------------


def test_off_calls_the_plain_function_with_the_very_arguments() -> None:
    seen: list[Any] = []
    result = object()

    def function(query: Any, *more: Any, **named: Any) -> Any:
        seen.append((query, more, named))
        return result

    wrapped = qtm.QueryMiddleware(off()).wrap(function)
    query, more, named = object(), [1], {"a": 1}
    assert wrapped(query, more, named=named) is result
    ((got, others, names),) = seen
    assert got is query
    assert others[0] is more
    assert names["named"] is named


# --- history --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_a_function_with_a_history_of_its_own_gets_it_too(kind: Any) -> None:
    seen: list[Any] = []

    def function(query: str, top_k: int = 4, history: Any = None) -> Any:
        seen.append(history)
        return search(query, top_k)

    model = ScriptedModel(scripted)
    wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=model).wrap(function)
    history = kind(HISTORY)
    wrapped.retrieve(QUERY, history=history)
    assert len(seen) == 3
    assert all(list(turns) == list(HISTORY) for turns in seen)
    if kind is not iter:
        assert all(turns is history for turns in seen)
    assert len(model.prompts[0].history) == 2


# --- threads, tasks and loops ---------------------------------------------------------------------


# --- several queries ------------------------------------------------------------------------------


def retrieve_many(wrapped: Any, is_async: bool, *args: Any, **kwargs: Any) -> list[qtm.Retrieval]:
    return (
        asyncio.run(wrapped.aretrieve_many(*args, **kwargs))
        if is_async
        else wrapped.retrieve_many(*args, **kwargs)
    )


both_ways = pytest.mark.parametrize("is_async", [False, True])


@both_ways
def test_a_list_of_queries_is_retrieved_as_each_by_itself(is_async: bool) -> None:
    asked = ["What does Jaco eat?", QUERY, " ", "What does Jaco eat?"]
    wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=ScriptedModel(scripted)).wrap(
        search
    )
    found = retrieve_many(wrapped, is_async, asked, top_k=2, config={"fusion": "rrf"})
    alone = [wrapped.retrieve(query, top_k=2, config={"fusion": "rrf"}) for query in asked]
    assert [it.original_query for it in found] == asked
    assert [it.response for it in found] == [it.response for it in alone]
    assert [it.degradations for it in found] == [it.degradations for it in alone]
    assert retrieve_many(wrapped, is_async, []) == []


@both_ways
def test_what_one_of_them_raises_is_raised_and_no_other_begins(is_async: bool) -> None:
    begun = []

    def broken(query: str) -> list[Any]:
        begun.append(query)
        raise ConnectionError(query)

    wrapped = qtm.QueryMiddleware({"limits": {"maxConcurrency": 2}}).wrap(broken)
    with pytest.raises(ConnectionError):
        retrieve_many(wrapped, is_async, [str(number) for number in range(50)])
    assert len(begun) < 10
    with pytest.raises(qtm.InvalidQuery, match="query must be a list of queries"):
        retrieve_many(wrapped, is_async, "a text")


class Finder(BaseModel):
    def _find(self, query: str) -> list[Any]:
        return []


def test_a_method_that_a_pydantic_parent_would_hide_is_refused_with_what_to_write() -> None:
    with pytest.raises((qtm.WrapError, RuntimeError)) as caught:

        class Own(Finder):
            @qtm.middleware
            def _find(self, query: str) -> list[Any]:
                return [{"id": "a", "text": query}]

    # Before Python 3.12 the class machinery raises an error of its own from ours.
    said = str(caught.value.__cause__ or caught.value)
    assert "Own._find = qtm.middleware(Own._find)" in said


@pytest.mark.parametrize("config", ["off", {"keywordEvidence": False}])
def test_a_function_of_a_vector_gets_one_also_where_nothing_is_to_be_improved(config: Any) -> None:
    def search_vectors(vector: list[float], top_k: int = 3) -> list[Any]:
        return [{"id": str(vector), "score": 1.0, "text": "found"}]

    async def search_later(vector: list[float], top_k: int = 3) -> list[Any]:
        return search_vectors(vector, top_k)

    def embed(texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]

    middleware = qtm.QueryMiddleware(config)
    wanted = search_vectors([float(len(QUERY)), 1.0])
    assert middleware.wrap(search_vectors, embed=embed)(QUERY) == wanted
    assert asyncio.run(middleware.wrap(search_later, embed=embed)(QUERY)) == wanted
    assert middleware.wrap(search_vectors, embed=embed)([float(len(QUERY)), 1.0]) == wanted


@pytest.mark.parametrize("query", ["", "  ", "x" * 9_000])
def test_a_query_that_is_passed_on_goes_where_the_function_has_a_place_for_it(query: str) -> None:
    def by_keyword(*, question: str, limit: int = 4) -> list[Any]:
        return [{"id": "a", "text": question}]

    wrapped: Any = qtm.middleware(by_keyword)
    assert wrapped("a gym") == [{"id": "a", "text": "a gym"}]
    assert wrapped(query) == [{"id": "a", "text": query}]
