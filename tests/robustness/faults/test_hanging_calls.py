"""What never returns holds the threads of its own middleware at most, and no original search waits for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.waiting import PATIENCE

QUERY = "Question: What does Nike sell?"
REPLY = '{"rewrite": "sales of Nike", "paraphrases": ["what Nike earns", "turnover of Nike"]}'
MOST = 6
CALLS = 40
FOREVER = 600.0


def plain(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [
        {"id": str(n), "score": 1 - n / 10, "metadata": {"text": f"Nike sells shoe {n}"}}
        for n in range(top_k)
    ]


class Hanging:
    """Functions that do not return before they are released, at the latest when the test is over."""

    def __init__(self) -> None:
        self.released = Event()
        self.calls: list[bool] = []

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.calls.append(True)
        self.released.wait(FOREVER)
        raise TimeoutError

    def on_variants(self, query: str, top_k: int = 4) -> Any:
        return plain(query, top_k) if query.startswith("Q") else self()

    def embed(self, texts: list[str]) -> Any:
        return [[1.0, 0.0] for _ in texts] if texts[0].startswith("Q") else self()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    it = Hanging()
    yield it
    it.released.set()


def middleware(config: dict[str, Any], **given: Any) -> qtm.QueryMiddleware:
    limits = {"deadlineMs": 240, "llmTimeoutMs": 160}
    base = {"limits": limits, "cache": {"enabled": False}, "breaker": {"failures": 0}}
    qm = qtm.QueryMiddleware({**base, **config}, **given)
    qm.engine.bulkhead.limit = MOST
    return qm


def by_vector(vector: Sequence[float], top_k: int = 4) -> Any:
    return plain(str(vector), top_k)


MULTI: dict[str, Any] = {"transformationType": "multi_query"}
RERANK: dict[str, Any] = {"rerank": {"enabled": True}}
IN_VECTORS: dict[str, Any] = {"query_arg": "vector"}

Make = Callable[[Hanging], tuple[qtm.QueryMiddleware, Any]]


def wrapped(
    qm: qtm.QueryMiddleware, fn: Any = plain, **options: Any
) -> tuple[qtm.QueryMiddleware, Any]:
    return qm, qm.wrap(fn, **options)


CASES: dict[str, Make] = {
    "model": lambda it: wrapped(middleware(MULTI, client=it)),
    "model_with_breaker": lambda it: wrapped(
        middleware({**MULTI, "breaker": {"seconds": 0.001}}, client=it)
    ),
    "variants": lambda it: wrapped(middleware(MULTI, client=ScriptedModel(REPLY)), it.on_variants),
    "reranker": lambda it: wrapped(middleware(RERANK, reranker=it)),
    "embedder": lambda it: wrapped(
        middleware(MULTI, client=ScriptedModel(REPLY)), by_vector, embed_many=it.embed, **IN_VECTORS
    ),
}


def threads() -> set[threading.Thread]:
    return {it for it in threading.enumerate() if it.name == "qtmiddleware"}


def ids(response: Any) -> list[str]:
    return [it["id"] for it in response]


def refused(found: qtm.Retrieval) -> bool:
    return any(it.reason == "overloaded" for it in found.degradations)


@pytest.mark.parametrize("case", CASES)
async def test_what_hangs_takes_no_more_threads_than_it_may_and_every_call_gets_the_plain_result(
    case: str, hanging: Hanging
) -> None:
    qm, search = CASES[case](hanging)
    healthy = qtm.QueryMiddleware().wrap(plain)
    bulkhead = qm.engine.bulkhead
    seen: list[qtm.Retrieval] = []
    # On a busy machine a call may be out of time before it asks for a thread, and is then not
    # refused one.
    while len(seen) < CALLS or (not any(map(refused, seen)) and len(seen) < 20 * CALLS):
        found = await asyncio.wait_for(
            asyncio.gather(*(search.aretrieve(QUERY) for _ in range(10))), PATIENCE
        )
        assert [ids(it.response) for it in found] == [ids(plain(QUERY))] * 10
        assert {it.status for it in found} == {"degraded"}
        assert bulkhead.in_use <= MOST
        seen += found
    assert bulkhead.in_use == MOST
    assert any(map(refused, seen))
    assert bulkhead.refused > 0
    beside = await asyncio.wait_for(healthy.aretrieve(QUERY), PATIENCE)
    assert (beside.status, ids(beside.response)) == ("full", ids(plain(QUERY)))
