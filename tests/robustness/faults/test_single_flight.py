"""Equal questions at the same time cost one call of the model, and each of them gets its own result."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from tests.support.fault_world import HASTY, QUERY, SECRET, failure, search, transforming
from tests.support.model_server import ModelServer, Said
from tests.support.waiting import PATIENCE, await_until, wait_until, with_enough_time

GOOD = {"rewrite": "Which illness does Jaco have?"}
MANY = 100


class Searched(list[str]):
    """A search function that keeps what was searched, and the reply of a model that lets all askers come first.

    Whoever asks joins the question that is under way before searching, or while that is searched.
    """

    def __call__(self, query: str, top_k: int = 3) -> Any:
        self.append(query)
        return search(query, top_k)

    async def awaited(self, query: str, top_k: int = 3) -> Any:
        return self(query, top_k)

    def reply_to(self, number: int, answer: Said) -> Callable[[dict[str, Any]], Said]:
        """*answer*, once the question was searched by *number*."""

        def respond(body: dict[str, Any]) -> Said:
            wait_until(lambda: self.count(QUERY) >= number)
            return answer

        return respond


def waiting(wrapped: Any) -> int:
    """How many wait for what another one asks the model."""
    return sum(
        len(it.result._done_callbacks)
        for it in wrapped.middleware.engine.cache.flights._by_key.values()
    )


def middleware(service: ModelServer, kind: str = "rewrite", **more: Any) -> qtm.QueryMiddleware:
    client = openai.OpenAI(base_url=service.url, api_key=SECRET, max_retries=0)
    return qtm.QueryMiddleware(transforming(kind, **more), client=client)


async def gathered(
    service: ModelServer, number: int, answer: Said, config: Any = None
) -> list[qtm.Retrieval]:
    """What *number* tasks that ask the same at once get."""
    searched = Searched()
    service.reply = searched.reply_to(number, answer)
    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        wrapped = qtm.QueryMiddleware(config or transforming("rewrite"), client=client).wrap(
            searched.awaited
        )
        return list(await asyncio.gather(*(wrapped.aretrieve(QUERY) for _ in range(number))))


async def test_a_hundred_equal_tasks_ask_once(service: ModelServer) -> None:
    seen = await gathered(service, MANY, GOOD)
    assert len(service.bodies) == 1
    assert {tuple(variant.text for variant in it.variants) for it in seen} == {
        (QUERY, GOOD["rewrite"])
    }
    assert {it.trace.decision.reason for it in seen if not it.trace.llm_calls} == {"shared"}


def test_threads_and_loops_share_one_call(service: ModelServer) -> None:
    searched = Searched()
    service.reply = searched.reply_to(12, GOOD)
    with openai.OpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=client).wrap(searched)
        with ThreadPoolExecutor(12) as pool:
            blocking = [pool.submit(wrapped.retrieve, QUERY) for _ in range(6)]
            awaiting = [
                pool.submit(lambda: asyncio.run(wrapped.aretrieve(QUERY))) for _ in range(6)
            ]
            seen = [it.result() for it in (*blocking, *awaiting)]
    assert len(service.bodies) == 1
    assert {it.status for it in seen} == {"full"}


async def test_a_failure_is_shared_and_told_to_each_but_not_remembered(
    service: ModelServer,
) -> None:
    config = transforming("rewrite", breaker={"failures": 0})
    seen = await gathered(service, 20, failure(500), config)
    assert len(service.bodies) == 1
    assert {(it.stage, it.reason) for one in seen for it in one.degradations} == {
        ("transform.rewrite", "unavailable")
    }
    assert {it.status for it in seen} == {"degraded"}
    await gathered(service, 1, failure(500), config)
    assert len(service.bodies) == 2


async def test_when_the_one_who_asks_is_cancelled_another_asks(service: ModelServer) -> None:
    service.reply = service.hang

    async def asearch(query: str, top_k: int = 3) -> Any:
        return search(query, top_k)

    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
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


def test_when_the_one_who_asks_is_out_of_time_another_asks(service: ModelServer) -> None:
    def answer(body: dict[str, Any]) -> Said:
        return service.hang(body) if len(service.bodies) == 1 else GOOD

    service.reply = answer
    wrapped = middleware(service, breaker={"failures": 0}).wrap(search)

    def ask(seconds: float) -> tuple[qtm.Retrieval, qtm.Retrieval | None]:
        """What one in a hurry gets, and who joins it once it has asked."""
        limits = {"llmTimeoutMs": int(1e3 * seconds), "deadlineMs": 600_000}
        with ThreadPoolExecutor(2) as pool:
            hasty = pool.submit(wrapped.retrieve, QUERY, config={"limits": limits})
            wait_until(lambda: service.asked.is_set() or hasty.done())
            joins = service.asked.is_set() and not hasty.done()
            patient = pool.submit(wrapped.retrieve, QUERY) if joins else None
            return hasty.result(), patient and patient.result()

    hasty, patient = with_enough_time(ask, lambda both: both[1], seconds=0.15)
    assert patient is not None
    assert [it.reason for it in hasty.degradations] == ["timeout"]
    assert patient.status == "full"


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


CHANGES: dict[str, dict[str, Any]] = {
    "tenant": {"cache": {"tenant": "other"}},
    "model": {"transformationModel": "other"},
    "prompt": {"llm": {"prompts": {"rewrite": "Say it better."}}},
    "language": {"preprocess": {"language": "en"}},
    "temperature": {"llm": {"temperature": 0.5}},
    "guard": {"llm": {"guard": False}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_may_change_a_reply_keeps_questions_apart(change: str, service: ModelServer) -> None:
    service.reply = {**GOOD, "hyde": "Jaco is in good health, says the vet who saw him."}
    wrapped = middleware(service).wrap(search)
    wrapped.retrieve(QUERY)
    wrapped.retrieve(QUERY)
    assert len(service.bodies) == 1
    wrapped.retrieve(QUERY, config=CHANGES[change])
    assert len(service.bodies) == 2


def test_conversations_keep_questions_apart(service: ModelServer) -> None:
    service.reply = {"standalone": QUERY, **GOOD}
    wrapped = middleware(service).wrap(search)
    for turns in (
        [],
        [("user", "Who is Jaco?")],
        [("user", "Who is Jaco?"), ("assistant", "A dog.")],
    ):
        for _ in range(2):
            wrapped.retrieve(QUERY, history=turns)
    assert len(service.bodies) == 3


def test_a_forked_child_asks_for_itself(service: ModelServer) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    released = threading.Event()

    def model(_: Any) -> str:
        released.wait(PATIENCE)
        return '{"rewrite": "Which illness does Jaco have?"}'

    wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=model).wrap(search)
    leader = threading.Thread(target=wrapped.retrieve, args=(QUERY,))
    leader.start()
    wait_until(lambda: wrapped.middleware.engine.cache.flights)
    child = os.fork()
    if not child:
        released.set()
        os._exit(0 if wrapped.retrieve(QUERY).status == "full" else 1)
    assert os.waitpid(child, 0)[1] == 0
    released.set()
    leader.join()
