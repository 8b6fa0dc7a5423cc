"""What the searches of a question read, as their responses say it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pinecone.models.vectors.responses import QueryResponse
from pinecone.models.vectors.search import SearchRecordsResponse, SearchResult, SearchUsage
from pinecone.models.vectors.usage import Usage
from pinecone.models.vectors.vector import ScoredVector

import qtmiddleware as qtm
from qtmiddleware.retrieval.responses import get_read_units
from qtmiddleware.testing import ScriptedModel

QUESTION = "What does the vet of Jaco do?"
REPLY = {"sub_queries": ["Who is the vet of Jaco?", "What do vets do?"]}


def query(query: str, top_k: int = 2) -> QueryResponse:
    matches = [
        ScoredVector(id=str(at), score=1.0 - at / 10, metadata={"text": f"vet {at}"})
        for at in range(top_k)
    ]
    return QueryResponse(matches=matches, usage=Usage(read_units=5))


async def aquery(text: str, top_k: int = 2) -> QueryResponse:
    return query(text, top_k)


def middleware(**settings: Any) -> qtm.QueryMiddleware:
    config = {"transformationType": "decompose", "store": {"readPrice": 16}, **settings}
    return qtm.QueryMiddleware(config, client=ScriptedModel(REPLY))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_the_units_of_all_searches_of_a_question_add_up(way: str) -> None:
    if way == "sync":
        trace = middleware().wrap(query).retrieve(QUESTION).trace
    else:
        trace = asyncio.run(middleware().wrap(aquery).aretrieve(QUESTION)).trace
    assert (trace.searches, trace.read_units) == (3, 15)
    assert trace.read_cost_usd == pytest.approx(15 * 16 / 1e6)


class Hostile:
    """A response that fails at whatever is read of its usage."""

    matches = ()

    @property
    def usage(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("response", "units"),
    [
        (query("a"), 5),
        (SearchRecordsResponse(result=SearchResult(hits=[]), usage=SearchUsage(read_units=7)), 7),
        (QueryResponse(matches=[], usage=Usage()), None),
        (QueryResponse(matches=[]), None),
        ({"matches": [], "usage": {"readUnits": 3}}, 3),  # as the API itself says it
        ({"matches": [], "usage": {"read_units": 0}}, 0),  # an index that is not billed by reads
        ({"matches": [], "usage": {"read_units": 0.25}}, 0.25),
        ({"usage": {"total_tokens": 9}}, None),
        (Hostile(), None),
        ([], None),
        (None, None),
    ],
)
def test_units_are_read_where_a_response_says_them(response: Any, units: float | None) -> None:
    assert get_read_units(response) == units
