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
from tests.support.completions import completion
from tests.support.fault_world import HASTY, PATIENT, QUERY, SECRET, failure, search, transforming
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


def test_a_hundred_equal_threads_ask_once(service: ModelServer) -> None:
    searched = Searched()
    service.reply = searched.reply_to(MANY, GOOD)
    wrapped = middleware(service).wrap(searched)
    with ThreadPoolExecutor(MANY) as pool:
        seen = list(pool.map(lambda _: wrapped.retrieve(QUERY), range(MANY)))
    assert len(service.bodies) == 1
    assert {it.status for it in seen} == {"full"}
    assert {tuple(variant.text for variant in it.variants) for it in seen} == {
        (QUERY, GOOD["rewrite"])
    }
    assert sum(it.trace.llm_calls for it in seen) == 1
    assert sum(it.trace.cache_hits for it in seen) == MANY - 1
    # Each searched for itself: results are never shared.
    assert (searched.count(QUERY), searched.count(GOOD["rewrite"])) == (MANY, MANY)


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


@pytest.mark.parametrize(
    "answer", [failure(500), completion(""), completion('{"rewrite": "Does Ja', finish="length")]
)
def test_no_failure_is_kept_as_a_success(answer: Any, service: ModelServer) -> None:
    wrapped = middleware(service, breaker={"failures": 0}).wrap(search)
    service.reply = answer
    assert wrapped.retrieve(QUERY).status == "degraded"
    service.reply = GOOD
    assert wrapped.retrieve(QUERY).status == "full"


def test_what_is_half_a_success_is_asked_again(service: ModelServer) -> None:
    wrapped = middleware(service, "all", breaker={"failures": 0}).wrap(search)
    replies = iter([GOOD, {"step_back": "What health concerns do dogs have?"}, {"note": "none"}])
    lock = threading.Lock()

    def answer(body: dict[str, Any]) -> Said:
        with lock:
            return next(
                replies,
                {"sub_queries": ["What did the vet say about Jaco?", "What does Jaco eat?"]},
            )

    service.reply = answer
    assert wrapped.retrieve(QUERY).status == "degraded"
    before = len(service.bodies)
    wrapped.retrieve(QUERY)
    assert len(service.bodies) > before


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
    "mode": {"transformationType": "hyde"},
    "prompt": {"llm": {"prompts": {"rewrite": "Say it better."}}},
    "language": {"preprocess": {"language": "en"}},
    "rules": {"preprocess": {"enabled": False}},
    "temperature": {"llm": {"temperature": 0.5}},
    "temperature of one": {"llm": {"temperatures": {"rewrite": 0.5}}},
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


def test_a_list_with_equal_questions_is_transformed_once_each(service: ModelServer) -> None:
    service.reply = GOOD
    made = middleware(service, limits=PATIENT).transform(
        [QUERY] * 30 + ["What does Jaco eat?"] + [QUERY]
    )
    assert [it.rewrite for it in made[:30]] == [GOOD["rewrite"]] * 30
    assert len(made) == 32
    assert len(service.bodies) == 2


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


def test_a_wrapped_function_that_calls_another_one_does_not_wait_for_itself(
    service: ModelServer,
) -> None:
    service.reply = GOOD
    qm = middleware(service)
    inner = qm.wrap(search)
    outer = qm.wrap(lambda query, top_k=3: inner(query, top_k))
    seen = outer.retrieve(QUERY)
    assert (seen.status, seen.transformation.rewrite) == ("full", GOOD["rewrite"])


async def test_an_awaited_function_that_calls_another_one_does_not_wait_for_itself(
    service: ModelServer,
) -> None:
    service.reply = GOOD

    async def asearch(query: str, top_k: int = 3) -> Any:
        return search(query, top_k)

    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        qm = qtm.QueryMiddleware(transforming("rewrite"), client=client)
        inner = qm.wrap(asearch)

        async def around(query: str, top_k: int = 3) -> Any:
            return await asyncio.create_task(inner(query, top_k))

        seen = await asyncio.wait_for(qm.wrap(around).aretrieve(QUERY), PATIENCE)
    assert (seen.status, seen.transformation.rewrite) == ("full", GOOD["rewrite"])


async def test_the_account_says_who_asked_when_one_asks_for_another(service: ModelServer) -> None:
    service.reply = service.hang

    async def asearch(query: str, top_k: int = 3) -> Any:
        return search(query, top_k)

    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=client).wrap(asearch)
        leader = asyncio.create_task(wrapped.aretrieve(QUERY))
        await await_until(lambda: service.bodies)
        other = asyncio.create_task(wrapped.aretrieve(QUERY))
        await await_until(lambda: waiting(wrapped) == 1)
        service.reply = GOOD
        leader.cancel()
        trace = (await other).trace
    assert (trace.decision.call, trace.decision.reason) == (True, "always")
    assert (trace.llm_calls, trace.cache_hits) == (1, 0)


async def test_a_hundred_who_are_cancelled_one_by_one_leave_one_who_asks(
    service: ModelServer,
) -> None:
    service.reply = service.hang

    async def asearch(query: str, top_k: int = 3) -> Any:
        return search(query, top_k)

    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        config = transforming("rewrite", {"llmTimeoutMs": 50_000, "deadlineMs": 55_000})
        wrapped = qtm.QueryMiddleware(config, client=client).wrap(asearch)
        tasks = [asyncio.create_task(wrapped.aretrieve(QUERY)) for _ in range(MANY)]
        await await_until(lambda: service.bodies)
        for asked, task in enumerate(tasks[:3], 1):
            assert len(service.bodies) == asked
            task.cancel()
            await await_until(lambda count=asked: len(service.bodies) > count)
        service.reply = GOOD
        for task in tasks[3:-1]:
            task.cancel()
        seen = await tasks[-1]
    assert seen.status == "full"
    assert len(wrapped.middleware.engine.cache.flights) == 0
    # Three that were cancelled while they asked, and at most the one and who led in between.
    assert 4 <= len(service.bodies) <= 6


def test_a_second_round_is_neither_asked_nor_counted_where_the_first_took_all_the_time(
    service: ModelServer,
) -> None:
    service.reply = service.hang

    def ask(seconds: float) -> tuple[qtm.Retrieval, list[dict[str, Any]]]:
        question = f"{QUERY} ({seconds})"
        wrapped = middleware(
            service, "all", limits={**HASTY, "llmTimeoutMs": round(1e3 * seconds)}
        ).wrap(search)
        seen = wrapped.retrieve(question, history=[("user", "Who is Jaco?")])
        return seen, [
            body for body in service.bodies if question in body["messages"][-1]["content"]
        ]

    # Where connecting fails for want of time, some is left: connecting may take nine tenths of it.
    seen, asked = with_enough_time(ask, lambda made: made[1])
    assert [(it.stage, it.reason) for it in seen.degradations] == [
        ("transform.standalone", "timeout")
    ]
    assert seen.trace.llm_calls == 1
    assert len(asked) == 1


def test_a_circuit_that_opens_between_two_rounds_is_told_and_nothing_is_remembered(
    service: ModelServer,
) -> None:
    service.reply = failure(500)
    wrapped = middleware(service, "all", breaker={"failures": 1}).wrap(search)
    seen = wrapped.retrieve(QUERY, history=[("user", "Who is Jaco?")])
    assert [it.reason for it in seen.degradations] == ["unavailable", *["circuit_open"] * 3]
    assert (seen.trace.llm_calls, len(service.bodies), seen.trace.decision.call) == (1, 1, True)
    again = wrapped.retrieve(QUERY, history=[("user", "Who is Jaco?")])
    assert [(it.stage, it.reason) for it in again.degradations] == [("transform", "circuit_open")]


def test_what_was_learned_while_a_first_result_was_searched_is_not_asked_again(
    service: ModelServer,
) -> None:
    service.reply = GOOD
    qm = middleware(service, escalation={"mode": "auto", "targetCallRate": 1.0})
    inner = qm.wrap(search)

    def around(query: str, top_k: int = 3) -> Any:
        if query != QUERY:
            return search(query, top_k)
        return inner.retrieve(query, top_k, config={"escalation": {"mode": "always"}}).response

    seen = qm.wrap(around).retrieve(QUERY)
    assert (seen.trace.decision.call, seen.trace.decision.reason) == (False, "cached")
    assert (seen.trace.cache_hits, len(service.bodies)) == (1, 1)


async def test_equal_follow_ups_that_take_two_rounds_share_both(service: ModelServer) -> None:
    said = {"standalone": QUERY, **GOOD, "step_back": "What is known of the health of dogs?"}
    service.reply = said | {
        "sub_queries": ["What did the vet say about Jaco?", "What illness does Jaco have?"]
    }
    released = asyncio.Event()

    async def slowly_searched(query: str, top_k: int = 3) -> Any:
        await released.wait()
        return search(query, top_k)

    async def asearch(query: str, top_k: int = 3) -> Any:
        return search(query, top_k)

    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        qm = qtm.QueryMiddleware(transforming("all"), client=client)
        turns = [("user", "Who is Jaco?")]
        leader = asyncio.create_task(qm.wrap(slowly_searched).aretrieve(QUERY, history=turns))
        await await_until(lambda: service.bodies)
        others = [
            asyncio.create_task(qm.wrap(asearch).aretrieve(QUERY, history=turns)) for _ in range(2)
        ]
        await await_until(lambda: waiting(qm.wrap(asearch)) == 2)
        assert not any(it.done() for it in others)
        released.set()
        seen = await asyncio.gather(leader, *others)
    assert [it.degradations for it in seen] == [()] * 3
    assert {it.transformation for it in seen} == {seen[0].transformation}
    assert seen[0].transformation.sub_queries
    assert len(service.bodies) == 4


async def test_one_who_waits_and_is_cancelled_leaves_nothing_behind(service: ModelServer) -> None:
    service.reply = service.hang

    async def asearch(query: str, top_k: int = 3) -> Any:
        return search(query, top_k)

    async with openai.AsyncOpenAI(base_url=service.url, api_key=SECRET, max_retries=0) as client:
        qm = qtm.QueryMiddleware(transforming("rewrite", PATIENT), client=client)
        tasks = [asyncio.create_task(qm.wrap(asearch).aretrieve(QUERY)) for _ in range(2)]
        flights = qm.engine.cache.flights
        await await_until(
            lambda: sum(len(it.result._done_callbacks) for it in flights._by_key.values()) == 1
        )
        for task in reversed(tasks):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not flights
