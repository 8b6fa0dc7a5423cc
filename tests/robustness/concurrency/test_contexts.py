"""What a search sets stays there."""

from __future__ import annotations

import asyncio
import gc
import json
from contextvars import ContextVar
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.concurrency_world import QUERY, SUBS, config, found

WAYS = ("sync", "async", "threads")
every_way = pytest.mark.parametrize("way", WAYS)

set_by_search: ContextVar[str] = ContextVar("set_by_search", default="nobody")


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


def test_a_task_that_a_search_began_may_go_on_for_ever() -> None:
    """It has that search's context, but none of its calls may be remembered there."""
    inner = qtm.middleware(found)
    tasks: list[asyncio.Task[list[int]]] = []

    async def count_objects() -> list[int]:
        counts = []
        for _ in range(3):
            for _ in range(50):
                await inner.aretrieve(QUERY)
            gc.collect()
            counts.append(len(gc.get_objects()))
        return counts

    async def plain(query: str, top_k: int = 2) -> Any:
        if query != QUERY and not tasks:
            tasks.append(asyncio.create_task(count_objects()))
        return found(query, top_k)

    async def amodel(messages: Any) -> str:
        return json.dumps({"sub_queries": SUBS})

    async def caller() -> list[int]:
        await qtm.QueryMiddleware(config(), client=amodel).wrap(plain).aretrieve(QUERY)
        return await tasks[0]

    _, before, after = asyncio.run(caller())
    assert after - before < 50
