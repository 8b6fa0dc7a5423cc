"""What holds however a flow's work is done: with threads, with tasks, and with tasks over blocking functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from qtmiddleware.runtime.concurrency import (
    IO,
    Bulkhead,
    Outcome,
    Tasks,
    Threads,
    drive,
)
from qtmiddleware.types import Deadline
from tests.support.waiting import PATIENCE, await_until, with_enough_time


def perform(way: str, flow: Callable[[IO], Awaitable[Any]], bulkhead: Bulkhead) -> Any:
    """Run *flow* to its end, with threads or with tasks."""

    async def start() -> Any:
        return await flow(Threads(bulkhead) if way == "threads" else Tasks(bulkhead))

    return drive(start()) if way == "threads" else asyncio.run(start())


both_ways = pytest.mark.parametrize("way", ["threads", "tasks"])


class OddEnd(BaseException):
    """Not an `Exception`, as some libraries' cancellations are."""


@both_ways
@pytest.mark.parametrize("error", [ValueError("no"), OddEnd()], ids=["exception", "base_exception"])
def test_one_error_among_several_is_that_very_object_and_leaves_the_others_alone(
    way: str, error: BaseException
) -> None:
    async def flow(io: IO) -> list[Outcome[Any]]:
        def fail() -> Any:
            raise error

        works = [partial(io.blocking, call) for call in (lambda: "a", fail, lambda: "b")]
        return await io.gather(works, Deadline(), 8)

    outcomes = perform(way, flow, Bulkhead())
    assert [outcome.value for outcome in outcomes] == ["a", None, "b"]
    assert (outcomes[1].error, outcomes[1].late, outcomes[1].has_succeeded) == (error, False, False)


@both_ways
def test_a_users_function_is_called_whether_it_is_asynchronous_or_not(way: str) -> None:
    async def flow(io: IO) -> list[Any]:
        late = partial(io.call, partial(asyncio.sleep, PATIENCE), 0.02)
        outcomes = await io.gather([late], Deadline(), 1)
        awaited = await io.call(partial(asyncio.sleep, 0, "awaited"))
        return [await io.call(lambda: "called"), awaited, outcomes[0].error]

    called, awaited, late = perform(way, flow, Bulkhead())
    assert (called, awaited) == ("called", "awaited")
    assert isinstance(late, TimeoutError)


def test_a_function_that_swallows_its_cancellation_does_not_hang_its_caller() -> None:
    swallowed: list[bool] = []

    async def within(seconds: float) -> list[Outcome[Any]]:
        release = asyncio.Event()

        async def stubborn() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    swallowed.append(True)

        gathering = Tasks(Bulkhead()).gather([stubborn, stubborn], Deadline.after(seconds), 2)
        outcomes = await asyncio.wait_for(gathering, PATIENCE)
        release.set()
        await await_until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        return outcomes

    outcomes = with_enough_time(
        lambda seconds: asyncio.run(within(seconds)), lambda _: swallowed, seconds=0.02
    )
    assert [outcome.late for outcome in outcomes] == [True, True]


class FiniteLoop(asyncio.SelectorEventLoop):
    """Accepts no infinite time, as the loops of Qt."""

    def call_at(self, when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        int(when)
        return super().call_at(when, *arguments, **options)


def test_waiting_without_a_deadline_asks_the_loop_for_no_infinite_time() -> None:
    async def start() -> Any:
        return await Tasks(Bulkhead()).start(partial(asyncio.sleep, 0, "done")).get()

    with asyncio.Runner(loop_factory=FiniteLoop) as runner:
        assert runner.run(start()) == "done"


def test_what_waits_for_a_thread_at_the_deadline_is_cancelled_and_has_not_failed() -> None:
    ends: list[type[BaseException]] = []
    release = threading.Event()

    async def start() -> list[Outcome[Any]]:
        io = Tasks(Bulkhead())

        async def wait() -> None:
            try:
                await io.blocking(lambda: release.wait(PATIENCE))
            except BaseException as error:
                ends.append(type(error))
                raise

        return await io.gather([wait], Deadline.after(0.02), 1)

    (outcome,) = asyncio.run(start())
    release.set()
    assert (outcome.late, ends) == (True, [asyncio.CancelledError])
