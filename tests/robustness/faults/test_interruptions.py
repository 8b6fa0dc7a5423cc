"""Ctrl-C and cancellation reach the caller, and nothing of ours is left running."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from tests.support.fault_world import (
    PATIENT,
    QUERY,
    SECRET,
    Day,
    search,
    transforming,
)
from tests.support.model_server import ModelServer
from tests.support.waiting import with_enough_time

SUBS = ["What did the vet say about Jaco?", "Which medical conditions do dogs have?"]


async def test_a_timeout_of_the_caller_is_the_callers(service: ModelServer) -> None:
    service.reply = service.hang
    released = asyncio.Event()

    async def retrieve(query: str, top_k: int = 3) -> Any:
        await released.wait()

    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        wrapped = qtm.QueryMiddleware(transforming("rewrite", PATIENT), client=client).wrap(
            retrieve
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wrapped(QUERY)


def within(seconds: float) -> dict[str, Any]:
    limits = {"llmTimeoutMs": 600_000, "deadlineMs": int(1e3 * seconds)}
    return transforming("decompose", limits, fusion={"minSuccesses": 1}, cache={"enabled": False})


def has_second_variant(day: Day) -> bool:
    return SUBS[1] in [it.variant.text for it in day.retrieval.rankings]


def test_an_awaited_variant_that_hangs_is_cancelled_at_the_deadline(service: ModelServer) -> None:
    service.reply = {"sub_queries": SUBS}
    ended: list[str] = []

    async def retrieve(query: str, top_k: int = 3) -> Any:
        if query == SUBS[0]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(query)
        return search(query, top_k)

    async def ask(seconds: float) -> Day:
        ended.clear()
        async with openai.AsyncOpenAI(
            base_url=service.url, api_key=SECRET, max_retries=0
        ) as client:
            wrapped = qtm.QueryMiddleware(within(seconds), client=client).wrap(retrieve)
            return Day(retrieval=await wrapped.aretrieve(QUERY))

    day = with_enough_time(
        lambda seconds: asyncio.run(ask(seconds)), has_second_variant, seconds=0.3
    )
    assert day.reasons == [("search.sub_query", "timeout")]
    assert [it.variant.text for it in day.retrieval.rankings] == [QUERY, SUBS[1]]
    assert ended == [SUBS[0]]
