"""What a call leaves behind: nothing that only a garbage collection would free, also where a search fails."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest

from qtmiddleware import QueryMiddleware
from qtmiddleware.testing import ScriptedModel
from tests.support.waiting import wait_until

QUESTION = "What does the harbour charge for a berth?"
VARIANTS = ["How much is a berth in the harbour?", "Which fees does the port take for mooring?"]
PASSAGES = [
    {"id": f"p{number}", "text": f"Berths cost {number} euros.", "score": 1 / number}
    for number in (1, 2, 3)
]


class Down(Exception):
    """The index is down; *raised* is where every such error can be looked at as long as it is held by anybody."""

    def __init__(self, raised: list[ref[Down]]) -> None:
        super().__init__()
        raised.append(ref(self))


class Index:
    """An index that is *down* for some texts, and knows which of its errors are still held by anybody."""

    def __init__(self, down: list[str]) -> None:
        self._down = down
        self._errors: list[ref[Down]] = []

    def search(self, query: str, top_k: int = 3) -> list[dict[str, Any]]:
        if query in self._down:
            raise Down(self._errors)
        return PASSAGES[:top_k]

    async def asearch(self, query: str, top_k: int = 3) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        return self.search(query, top_k)

    def has_freed_all(self) -> bool:
        return bool(self._errors) and not any(error() for error in self._errors)


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def middleware() -> QueryMiddleware:
    config = {
        "transformationType": "multi_query",
        "llm": {"paraphrases": 2},
        "cache": {"enabled": False},
    }
    return QueryMiddleware(config, client=ScriptedModel({"paraphrases": VARIANTS}))


@pytest.mark.parametrize(
    "down", [VARIANTS[:1], VARIANTS, [QUESTION]], ids=["a variant", "all variants", "question"]
)
def test_the_error_of_a_search_is_freed_with_its_call(
    middleware: QueryMiddleware, down: list[str]
) -> None:
    index = Index(down)
    search = middleware.wrap(index.search)
    try:
        search(QUESTION)
    except Down:
        assert down == [QUESTION]
    # A thread may still be on its way out of its last search.
    wait_until(index.has_freed_all)
