"""Equal questions at the same time cost one call of the model, and each of them gets its own result."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from tests.support.fault_world import (
    ACCOUNT,
    GOOD,
    HASTY,
    QUERY,
    failure,
    middleware,
    search,
    transforming,
)
from tests.support.model_server import ModelServer, Said
from tests.support.waiting import await_until, wait_until


async def asearch(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


def waiting(wrapped: Any) -> int:
    """How many wait for what another one asks the model."""
    flights = wrapped.middleware.engine.cache._flights.values()
    return sum(len(flight._done_callbacks) for flight, _ in flights)


def share_one_call(service: ModelServer, answer: Said, config: Any) -> list[qtm.Retrieval]:
    """What twelve get who ask the same at once, half of them in event loops; each searches for itself."""
    searched: list[str] = []

    def recorded(query: str, top_k: int = 3) -> Any:
        searched.append(query)
        return search(query, top_k)

    def reply(body: dict[str, Any]) -> Said:
        wait_until(lambda: searched.count(QUERY) >= 12 and waiting(wrapped) == 11)
        return answer

    service.reply = reply
    with openai.OpenAI(base_url=service.url, **ACCOUNT) as client:
        wrapped = qtm.QueryMiddleware(config, client=client).wrap(recorded)
        with ThreadPoolExecutor(12) as pool:
            ways = (wrapped.retrieve, lambda query: asyncio.run(wrapped.aretrieve(query)))
            asked = [pool.submit(ways[number % 2], QUERY) for number in range(12)]
            seen = [it.result() for it in asked]
    assert (len(service.bodies), searched.count(QUERY)) == (1, 12)
    return seen


def test_threads_and_loops_share_one_call_and_each_searches_for_itself(
    service: ModelServer,
) -> None:
    seen = share_one_call(service, GOOD, transforming("rewrite"))
    assert {it.variants[1].text for it in seen} == {GOOD["rewrite"]}
    assert {it.status for it in seen} == {"full"}
    assert sum(it.trace.llm_calls for it in seen) == 1
    assert sum(it.trace.cache_hits for it in seen) == 11
    assert {it.trace.decision.reason for it in seen if not it.trace.llm_calls} == {"shared"}


def test_a_failure_is_shared_and_told_to_each_but_not_remembered(service: ModelServer) -> None:
    config = transforming("rewrite", breaker={"failures": 0})
    seen = share_one_call(service, failure(500), config)
    assert {(it.stage, it.reason) for one in seen for it in one.degradations} == {
        ("transform.rewrite", "unavailable")
    }
    wrapped = middleware(service, breaker={"failures": 0}).wrap(search)
    for service.reply, status in ((failure(500), "degraded"), (GOOD, "full")):
        assert wrapped.retrieve(QUERY).status == status


async def test_when_the_one_who_asks_is_cancelled_another_asks(service: ModelServer) -> None:
    service.reply = service.hang

    async with openai.AsyncOpenAI(base_url=service.url, **ACCOUNT) as client:
        wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=client).wrap(asearch)
        leader = asyncio.create_task(wrapped.aretrieve(QUERY))
        await await_until(lambda: service.bodies)
        others = [asyncio.create_task(wrapped.aretrieve(QUERY)) for _ in range(5)]
        await await_until(lambda: waiting(wrapped) == 5)
        service.reply = GOOD
        leader.cancel()
        seen = await asyncio.gather(*others)
        with pytest.raises(asyncio.CancelledError):
            await leader
    assert {it.status for it in seen} == {"full"}
    assert len(service.bodies) == 2


def test_one_who_waits_for_another_waits_no_longer_than_for_the_model(service: ModelServer) -> None:
    service.reply = service.hang
    wrapped = middleware(service).wrap(search)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(wrapped.retrieve, QUERY)
        wait_until(service.asked.is_set)
        hasty = wrapped.retrieve(QUERY, config={"limits": HASTY})
        assert [(it.stage, it.reason) for it in hasty.degradations] == [("transform", "timeout")]
        assert not leader.done()
        assert hasty.response == qtm.QueryMiddleware().wrap(search)(QUERY)
        service.released.set()
    assert len(service.bodies) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"history": [("user", "Who is Jaco?")]},
        {"config": {"llm": {"prompts": {"rewrite": "Say it better."}}}},
    ],
    ids=["conversation", "prompt"],
)
def test_what_may_change_a_reply_keeps_questions_apart(
    options: dict[str, Any], service: ModelServer
) -> None:
    service.reply = {**GOOD, "standalone": QUERY}
    wrapped = middleware(service).wrap(search)
    for more in ({}, {}, options, options):
        wrapped.retrieve(QUERY, **more)
    assert len(service.bodies) == 2
