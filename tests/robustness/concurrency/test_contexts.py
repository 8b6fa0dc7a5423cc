"""What the caller has set is seen wherever its question is worked at, and what is set there stays there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.concurrency_world import QUERY, SUBS, config, found, reply

WAYS = ("sync", "async", "threads")
every_way = pytest.mark.parametrize("way", WAYS)

request_id: ContextVar[str] = ContextVar("request_id", default="none")
set_by_search: ContextVar[str] = ContextVar("set_by_search", default="nobody")


class House:
    """Everything a question passes through, each part with what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def _look(self, name: str) -> None:
        self.seen.append((name, request_id.get()))

    def search(self, vector: Sequence[float], top_k: int = 2) -> Any:
        self._look("search")
        return found(f"passage {vector[0]}", top_k)

    async def asearch(self, vector: Sequence[float], top_k: int = 2) -> Any:
        await asyncio.sleep(0)
        return self.search(vector, top_k)

    def embed(self, texts: Sequence[str]) -> Any:
        self._look("embed")
        return [[float(len(text))] for text in texts]

    async def aembed(self, texts: Sequence[str]) -> Any:
        await asyncio.sleep(0)
        return self.embed(texts)

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self._look("rerank")
        return [float(len(text)) for text in texts]

    def model(self, messages: Any) -> str:
        self._look("model")
        return json.dumps(reply({"sub_queries": "list"}))

    async def amodel(self, messages: Any) -> str:
        await asyncio.sleep(0)
        return self.model(messages)

    def ask(self, way: str) -> Any:
        settings = config(rerank={"enabled": True})
        client = self.amodel if way == "async" else self.model
        middleware = qtm.QueryMiddleware(settings, client=client, reranker=self.rerank)
        if way == "async":
            wrapped = middleware.wrap(self.asearch, query_arg="vector", embed=self.aembed)
        else:
            wrapped = middleware.wrap(self.search, query_arg="vector", embed=self.embed)
        return wrapped.retrieve(QUERY) if way == "sync" else asyncio.run(wrapped.aretrieve(QUERY))


PARTS = ["embed", "embed", "model", "rerank", *["search"] * 4]


@every_way
def test_the_callers_variables_are_seen_by_every_part_of_its_question(way: str) -> None:
    house = House()
    mark = request_id.set("r-17")
    try:
        assert house.ask(way).status == "full"
    finally:
        request_id.reset(mark)
    assert sorted(house.seen) == [(name, "r-17") for name in PARTS]


@every_way
@pytest.mark.parametrize("cap", [8, 2, 1])
def test_what_a_search_sets_is_seen_by_no_other_search_and_not_by_the_caller(
    way: str, cap: int
) -> None:
    """The question's own search in the caller's thread or task is apart: what it sets, the plain call would set too."""
    seen: dict[str, str] = {}

    def plain(query: str, top_k: int = 2) -> Any:
        seen[query] = set_by_search.get()
        set_by_search.set(query)
        return found(query, top_k)

    async def awaited(query: str, top_k: int = 2) -> Any:
        result = plain(query, top_k)
        await asyncio.sleep(0)
        return result

    async def amodel(messages: Any) -> str:
        return json.dumps({"sub_queries": SUBS})

    middleware = qtm.QueryMiddleware(config(limits={"maxConcurrency": cap}), client=amodel)
    wrapped = middleware.wrap(awaited if way == "async" else plain)

    async def caller() -> str:
        retrieval = wrapped.retrieve(QUERY) if way == "sync" else await wrapped.aretrieve(QUERY)
        assert retrieval.status == "full"
        return set_by_search.get()

    assert asyncio.run(caller()) in ({"nobody"} if way == "threads" else {QUERY})
    assert set_by_search.get() == "nobody"
    assert seen == dict.fromkeys((QUERY, *SUBS), "nobody")
