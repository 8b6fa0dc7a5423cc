"""Event loops of every kind, one after the other, inside one another and beside one another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.concurrency_world import ANSWER, QUERY, REWRITE, config, found, scripted
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.thorough

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def plain(query: str, top_k: int = 2) -> Any:
    return found(query, top_k)


async def awaited(query: str, top_k: int = 2) -> Any:
    await asyncio.sleep(0)
    return found(query, top_k)


async def awaited_by_any_loop(query: str, top_k: int = 2) -> Any:
    return found(query, top_k)


def driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of *coroutine*, driven as another library's loop drives it: asyncio runs no loop."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


def searched(retrieval: qtm.Retrieval) -> list[str]:
    assert retrieval.status == "full", retrieval.degradations
    return [it.variant.text for it in retrieval.rankings]


def run_by_uvloop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


every_loop = pytest.mark.parametrize(
    "run",
    [
        pytest.param(asyncio.run, id="asyncio"),
        pytest.param(run_by_uvloop, id="uvloop", marks=pytest.mark.thorough),
    ],
)


@every_loop
def test_blocking_calls_awaited_ones_and_streams_work_in_a_running_loop(
    run: Run, house: ModelServer
) -> None:
    async def cell() -> tuple[list[Any], str]:
        async with openai.AsyncOpenAI(base_url=house.url, api_key="sk-x") as client:
            middleware = qtm.QueryMiddleware(config("rewrite"), client=client)
            both = middleware.wrap(plain), middleware.wrap(awaited)
            made = [both[0].retrieve(QUERY), await both[1].aretrieve(QUERY)]
            stream = both[1].astream_answer(QUERY)
            return made, "".join([piece async for piece in stream])

    made, answer = run(cell())
    assert [searched(it) for it in made] == [[QUERY, REWRITE]] * 2
    assert answer == ANSWER


@pytest.mark.parametrize("function", [plain, awaited_by_any_loop])
def test_under_a_loop_that_is_not_asyncios_a_call_is_answered_in_full(
    function: Callable[..., Any],
) -> None:
    qm = qtm.QueryMiddleware(config(), client=ScriptedModel(scripted))
    wrapped = qm.wrap(function)

    async def stream() -> str:
        async with wrapped.astream_answer(QUERY) as pieces:
            return "".join([piece async for piece in pieces])

    assert searched(driven(wrapped.aretrieve(QUERY)))[1:]
    assert driven(wrapped.aanswer(QUERY)).text == driven(stream()) == ANSWER
