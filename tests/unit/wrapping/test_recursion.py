"""A function that searches through itself is searched as often as it would be without us."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import pytest

from tests.support.wrapping_world import QUERY, ids, middleware, rows

DEPTH: Final = 3
WAYS: Final = ("called", "retrieved", "awaited in threads", "awaited")
every_way = pytest.mark.parametrize("way", WAYS)


class Recursive:
    """Searches through its wrapped self, with a text that changes each time, to a depth of `DEPTH`."""

    def __init__(self, nested: str = "call") -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.found: list[Any] = []
        self._nested = nested
        self.wrapped: Any = middleware().wrap(self.search)
        self.awaited: Any = middleware().wrap(self.asearch)

    def search(self, query: str, top_k: int = 4) -> Any:
        self._note(query)
        if query.count("+") < DEPTH:
            ask = self.wrapped if self._nested == "call" else self.wrapped.retrieve
            self.found.append(ask(f"{query}+", top_k))
        return rows()

    async def asearch(self, query: str, top_k: int = 4) -> Any:
        self._note(query)
        await asyncio.sleep(0)
        if query.count("+") < DEPTH:
            ask = self.awaited if self._nested == "call" else self.awaited.aretrieve
            self.found.append(await ask(f"{query}+", top_k))
        return rows()

    def _note(self, query: str) -> None:
        self.asked.append(query)
        self.threads.add(threading.get_ident())

    def ask(self, way: str) -> Any:
        if way == "called":
            return self.wrapped(QUERY)
        if way == "retrieved":
            return self.wrapped.retrieve(QUERY).response
        wrapped = self.wrapped if way == "awaited in threads" else self.awaited
        return asyncio.run(wrapped.aretrieve(QUERY)).response


@every_way
@pytest.mark.parametrize("nested", ["call", "retrieve"])
def test_a_function_that_searches_through_itself_searches_no_more_than_it_does_alone(
    way: str, nested: str
) -> None:
    recursive = Recursive(nested)
    assert ids(recursive.ask(way)) == ["near", "far"]
    # The question and its rewrite, each as deep as the function goes by itself.
    assert len(recursive.asked) == 2 * (DEPTH + 1)
    assert sorted(it.count("+") for it in recursive.asked) == sorted([*range(DEPTH + 1)] * 2)
    assert len(recursive.threads) <= 2


async def test_a_task_that_outlives_the_search_it_was_begun_in_is_nested_no_more() -> None:
    later: list[asyncio.Task[Any]] = []
    go_on = asyncio.Event()

    @middleware().wrap
    async def search(query: str, top_k: int = 4) -> Any:
        if not later:
            later.append(asyncio.create_task(ask_again()))
        return rows()

    async def ask_again() -> Any:
        await go_on.wait()
        return await search.aretrieve(f"{QUERY} Really?")

    await search(QUERY)
    go_on.set()
    assert (await later[0]).status == "full"
