"""What holds however a flow's work is done: with threads, with tasks, and with tasks over blocking functions."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pytest

from qtmiddleware.runtime.io import (
    IO,
    FunctionStopped,
    Outcome,
    Tasks,
    Threads,
    Work,
    drive,
    on_abandon,
)
from qtmiddleware.runtime.threads import Bulkhead
from qtmiddleware.types import Deadline
from tests.support.waiting import PATIENCE, await_until, wait_until, with_enough_time

MODES: Final = ("threads", "tasks", "tasks_over_blocking_functions")


class Way:
    """One way to do a flow's work."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.bulkhead = Bulkhead()

    def perform(self, flow: Callable[[IO], Awaitable[Any]]) -> Any:
        """Run *flow* to its end."""

        async def start() -> Any:
            io: IO = Threads(self.bulkhead) if self.mode == "threads" else Tasks(self.bulkhead)
            return await flow(io)

        return drive(start()) if self.mode == "threads" else asyncio.run(start())

    def work(self, io: IO, function: Callable[[], Any], *after: threading.Event) -> Work[Any]:
        """Work that calls *function* once all events of *after* are set."""

        def block() -> Any:
            for event in after:
                assert event.wait(PATIENCE)
            return function()

        async def wait() -> Any:
            for event in after:
                await await_until(event.is_set)
            return function()

        return wait if self.mode == "tasks" else partial(io.blocking, block)

    def gather(
        self,
        *functions: Callable[[], Any],
        deadline: Deadline | None = None,
        limit: int = 8,
        after: Sequence[threading.Event] = (),
    ) -> list[Outcome[Any]]:
        """The outcomes of *functions*, called at the same time."""

        async def flow(io: IO) -> list[Outcome[Any]]:
            works = [self.work(io, function, *after) for function in functions]
            return await io.gather(works, deadline or Deadline(), limit)

        outcomes: list[Outcome[Any]] = self.perform(flow)
        return outcomes


@pytest.fixture(params=MODES)
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Nobody sets it while the flow runs; set afterwards, so that what waits for it can end."""
    event = threading.Event()
    yield event
    event.set()


class OddEnd(BaseException):
    """Not an `Exception`, as some libraries' cancellations are."""


@pytest.mark.parametrize("error", [ValueError("no"), OddEnd()], ids=["exception", "base_exception"])
def test_one_error_among_several_is_that_very_object_and_leaves_the_others_alone(
    way: Way, error: BaseException
) -> None:
    def fail() -> Any:
        raise error

    outcomes = way.gather(lambda: "a", fail, lambda: "b")
    assert [outcome.value for outcome in outcomes] == ["a", None, "b"]
    assert (outcomes[1].error, outcomes[1].late, outcomes[1].has_succeeded) == (error, False, False)


def test_a_full_bulkhead_is_an_outcome_too() -> None:
    for way in map(Way, ("threads", "tasks_over_blocking_functions")):
        way.bulkhead = Bulkhead(0)
        outcomes = way.gather(lambda: 1, lambda: 2)
        assert [outcome.reason for outcome in outcomes] == ["overloaded"] * 2
        assert "all 0 threads of the middleware are busy" in outcomes[0].detail


def test_what_was_started_beside_ends_when_its_caller_gives_up(
    way: Way, never: threading.Event
) -> None:
    has_begun, ended, told = threading.Event(), threading.Event(), list[str]()

    async def flow(io: IO) -> None:
        async def deep() -> None:
            on_abandon(told.append)
            await way.work(io, lambda: None, never)()

        async def side() -> None:
            try:
                await io.gather([deep, way.work(io, has_begun.set)], Deadline(), 2)
            finally:
                ended.set()

        beside = io.start(side)
        await way.work(io, lambda: None, has_begun)()
        wait = way.work(io, lambda: None)
        while not told:
            await wait()
            await beside.cancel()
        await way.work(io, lambda: None, ended)()

    way.perform(flow)
    assert told == ["cancelled"]


def test_a_users_function_is_called_whether_it_is_asynchronous_or_not(way: Way) -> None:
    async def function() -> str:
        await asyncio.sleep(0)
        return "awaited"

    async def flow(io: IO) -> list[Any]:
        late = await io.gather(
            [partial(io.call, partial(asyncio.sleep, PATIENCE), 0.02)], Deadline(), 1
        )
        return [await io.call(lambda: "called"), await io.call(function), late[0].error]

    called, awaited, late = way.perform(flow)
    assert (called, awaited) == ("called", "awaited")
    assert isinstance(late, TimeoutError)


def test_a_stop_iteration_of_the_function_reaches_the_caller_and_ends_no_flow() -> None:
    async def flow() -> None:
        raise FunctionStopped(StopIteration("the function's"))

    with pytest.raises(StopIteration, match="the function's"):
        drive(flow())


def test_after_an_interrupt_nothing_further_begins_and_those_that_run_are_told(
    never: threading.Event,
) -> None:
    way, begun, told = Way("threads"), list[str](), list[str]()
    first = threading.Event()

    async def flow(io: IO) -> None:
        async def work(name: str) -> None:
            on_abandon(told.append)
            begun.append(name)
            first.set()
            await io.blocking(lambda: never.wait(PATIENCE))

        async def side() -> None:
            await io.gather([partial(work, name) for name in "abc"], Deadline(), 1)

        beside = io.start(side)
        try:
            first.wait(PATIENCE)
            signal.raise_signal(signal.SIGINT)
        finally:
            await beside.cancel()

    with pytest.raises(KeyboardInterrupt):
        way.perform(flow)
    never.set()
    wait_until(lambda: way.bulkhead.in_use == 0)
    assert (begun, told) == (["a"], ["cancelled"])


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
