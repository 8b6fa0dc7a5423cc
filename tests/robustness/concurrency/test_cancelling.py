"""Cancelled at any of its await points, a call ends whole: nothing of it goes on and nothing complains."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, Final

import openai
import pytest

import qtmiddleware as qtm
from tests.support.concurrency_world import QUERY, config, found
from tests.support.model_server import ModelServer
from tests.support.stepping import Counted, Model, cancelled_at_every_step, searching
from tests.support.waiting import await_until

pytestmark = pytest.mark.thorough


def streaming(wrapped: Any) -> Callable[[], Awaitable[str]]:
    async def call() -> str:
        async with wrapped.astream_answer(QUERY) as stream:
            return "".join([piece async for piece in stream])

    return call


KINDS: Final = ("combined", "all", "decompose")


@pytest.mark.parametrize("cap", [8, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_retrieval_can_be_cancelled_wherever_it_waits(kind: str, cap: int) -> None:
    counted = Counted()
    settings = config(kind, limits={"maxConcurrency": cap, "maxSearches": 20})
    wrapped = qtm.QueryMiddleware(settings, client=Model(counted)).wrap(searching(counted))
    assert cancelled_at_every_step(lambda: wrapped.aretrieve(QUERY), counted) > 10
    assert asyncio.run(wrapped.aretrieve(QUERY)).status == "full"


@pytest.mark.parametrize("mode", ["plain", "synthesis"])
@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_an_answer_can_be_cancelled_wherever_it_waits(mode: str, way: str) -> None:
    counted = Counted()
    settings = config(answer={"mode": mode})
    wrapped = qtm.QueryMiddleware(settings, client=Model(counted)).wrap(searching(counted))
    call = streaming(wrapped) if way == "streamed" else lambda: wrapped.aanswer(QUERY)
    assert cancelled_at_every_step(call, counted) > 10
    assert asyncio.run(wrapped.aanswer(QUERY)).status == "full"


@pytest.mark.parametrize("way", ["retrieve", "stream"])
def test_with_the_real_client_it_can_be_cancelled_wherever_it_waits(
    way: str, house: ModelServer
) -> None:
    counted = Counted()

    async def call() -> Any:
        async with openai.AsyncOpenAI(base_url=house.url, api_key="sk-x", max_retries=0) as client:
            wrapped = qtm.QueryMiddleware(config("rewrite"), client=client).wrap(searching(counted))
            return await (streaming(wrapped)() if way == "stream" else wrapped.aretrieve(QUERY))

    # Iterators deep inside the client are closed by the loop, after they were let go of.
    assert cancelled_at_every_step(call, counted, closes_late=True) > 5


def test_whoever_waits_for_an_equal_question_is_not_cancelled_with_it() -> None:
    counted = Counted()

    async def call() -> Any:
        settings = config(cache={"enabled": True})
        wrapped = qtm.QueryMiddleware(settings, client=Model(counted)).wrap(searching(counted))
        first = asyncio.ensure_future(wrapped.aretrieve(QUERY))
        second = asyncio.ensure_future(wrapped.aretrieve(QUERY))
        steps: Any = asyncio.get_running_loop().get_task_factory()
        steps.victim = first
        try:
            await first
        finally:
            assert (await second).status == "full"

    assert cancelled_at_every_step(call, counted) > 10


def hanging(counted: Counted) -> Any:
    """A wrapped function of which every search hangs that is not for the question itself."""

    async def retrieve(query: str, top_k: int = 2) -> Any:
        with counted:
            if query != QUERY:
                await asyncio.Event().wait()
            return found(query, top_k)

    return qtm.QueryMiddleware(config(), client=Model(counted)).wrap(retrieve)


async def test_a_call_that_is_cancelled_twice_ends_everything_it_began() -> None:
    counted = Counted()
    task = asyncio.create_task(hanging(counted).aretrieve(QUERY))
    await await_until(lambda: counted.begun == 5)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The second one cut the clearing up short, which ends by itself.
    await await_until(lambda: len(asyncio.all_tasks()) == 1)
    assert counted.begun == counted.ended


def test_a_call_whose_loop_was_closed_in_the_middle_is_thrown_away_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted, loop = Counted(), asyncio.new_event_loop()
    task = loop.create_task(hanging(counted).aretrieve(QUERY))
    loop.run_until_complete(await_until(lambda: counted.begun == 5))
    loop.close()
    del task
    gc.collect()
    # asyncio itself tells that tasks were pending; anything else that is raised fails this test.
    assert {record.name for record in caplog.records} == {"asyncio"}
    assert counted.begun == counted.ended
