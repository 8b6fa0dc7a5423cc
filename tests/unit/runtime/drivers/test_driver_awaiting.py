"""The driver that awaits."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest
from driver_worlds import Signal, World, ask, one, own_and, searches

from qtmiddleware.runtime import threads
from qtmiddleware.runtime.drivers import arun, run_in_thread
from qtmiddleware.runtime.steps import Embed, Flow, Outcome, Search, Together
from qtmiddleware.types import Deadline
from tests.support.waiting import PATIENCE, with_enough_time

Waits = Generator[Signal, None, Any]


@pytest.fixture
def complaints() -> Iterator[list[Any]]:
    """What threads fail with, which nobody else would see."""
    seen: list[Any] = []
    before, threading.excepthook = threading.excepthook, seen.append
    yield seen
    threading.excepthook = before


class Stepwise(World):
    """A native world whose every answer takes some turns of the loop, and which counts what is under way."""

    def __init__(self) -> None:
        super().__init__(can_await_calls=True)
        self.model = self
        self.name = "stepwise"
        self.can_async = True
        self.under_way = 0

    async def _some_turns(self, value: Any) -> Any:
        self.under_way += 1
        try:
            for _ in range(4):
                await asyncio.sleep(0)
            if value == "bad":
                raise ValueError("bad")
            return value
        finally:
            self.under_way -= 1

    def asearch(self, step: Search) -> Awaitable[Any]:
        return self._some_turns(step.text)

    def aembed(self, texts: Any) -> Awaitable[Any]:
        return self._some_turns(texts)

    async def acomplete(self, prompt: Any, deadline: Deadline) -> Any:
        return await self._some_turns(prompt.query)


def long_flow(closed: list[bool]) -> Flow[str]:
    try:
        yield from own_and([Search("own"), ask("a"), ask("bad")], Deadline(), 8)
        yield Embed(["x"])
        yield Together(searches(*"abcdef", "bad"), Deadline.after(1_000), 2)
        yield Search("last")
        return "done"
    finally:
        closed.append(True)


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """What earlier tests left would be looked through again at each of the collections below."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("turns", range(0, 48, 1))
async def test_cancelled_at_any_moment_nothing_is_left_running(turns: int) -> None:
    loop, complained = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: complained.append(context))
    world, closed = Stepwise(), []
    task = asyncio.create_task(arun(long_flow(closed), world))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    assert ended == "done" or isinstance(ended, asyncio.CancelledError)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert world.under_way == 0
    # A task that is cancelled before its first turn has never begun the flow.
    assert closed == [True] or turns == 0
    gc.collect()
    await asyncio.sleep(0)
    assert complained == []


async def test_the_whole_flow_takes_fewer_turns_than_it_is_cancelled_at() -> None:
    assert await arun(long_flow([]), Stepwise()) == "done"


def test_a_function_that_swallows_its_cancellation_does_not_hang_the_driver() -> None:
    swallowed: list[str] = []

    class Stubborn(World):
        release: asyncio.Event

        async def asearch(self, step: Search) -> Any:  # type: ignore[override]
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    swallowed.append(step.text)
            return step.text

    async def within(seconds: float) -> list[Outcome]:
        swallowed.clear()
        world = Stubborn(can_await_calls=True)
        world.release = asyncio.Event()
        flow = one(Together(searches("a", "b"), Deadline.after(seconds), 2))
        outcomes: list[Outcome] = await asyncio.wait_for(arun(flow, world), PATIENCE)
        world.release.set()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))  # type: ignore[arg-type]
        return outcomes

    # With too little time on a busy machine they are late before they begin.
    outcomes = with_enough_time(
        lambda seconds: asyncio.run(within(seconds)), lambda _: swallowed, seconds=0.02
    )
    assert [it.late for it in outcomes] == [True, True]
    assert sorted(swallowed) == ["a", "b"]


async def test_a_cancellation_that_comes_from_the_function_itself_passes_through() -> None:
    class Cancelling(World):
        async def asearch(self, step: Search) -> Any:  # type: ignore[override]
            raise asyncio.CancelledError

    world = Cancelling(can_await_calls=True)
    for flow in (one(Search("x")), own_and(searches("own", "b"), Deadline(), 2)):
        with pytest.raises(asyncio.CancelledError):
            await arun(flow, world)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_plain_function_runs_in_a_daemon_thread_and_the_loop_goes_on() -> None:
    ticked, ran_in = threading.Event(), []

    class Blocking(World):
        def search(self, step: Search) -> Any:
            ran_in.append(threading.current_thread())
            # Set after fifty turns of the loop, which a blocked loop would never make.
            return ticked.wait(PATIENCE)

    async def tick() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        ticked.set()

    ticker = asyncio.create_task(tick())
    outcomes = await arun(
        one(Together(searches("a", "b"), Deadline(), 2)), Blocking(can_await_calls=False)
    )
    await ticker
    assert [it.value for it in outcomes] == [True, True]
    assert all(it.daemon and it is not threading.main_thread() for it in ran_in)


async def test_a_plain_functions_stop_iteration_does_not_hang_the_caller() -> None:
    class Ending(World):
        def search(self, step: Search) -> Any:
            return next(iter([]))

    world = Ending(can_await_calls=False)
    with pytest.raises((StopIteration, RuntimeError)):
        await asyncio.wait_for(arun(one(Search("x")), world), PATIENCE)
    (outcome,) = await asyncio.wait_for(
        arun(one(Together(searches("x"), Deadline(), 1)), world), PATIENCE
    )
    assert isinstance(outcome.error, StopIteration | RuntimeError)


async def test_a_plain_function_whose_caller_is_gone_before_it_begins_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Callable[[], None]] = []
    monkeypatch.setattr(threads._threads, "start", begun.append)
    called: list[bool] = []
    task = asyncio.create_task(run_in_thread(lambda: called.append(True)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    begun[0]()
    assert called == []


def test_three_loops_in_a_row_work_the_same() -> None:
    def flow() -> Flow[list[Any]]:
        outcomes = yield Together(searches("a", "b"), Deadline(), 2)
        return [it.value for it in outcomes]

    for native in (True, False):
        results = [asyncio.run(arun(flow(), World(can_await_calls=native))) for _ in range(3)]
        assert results == [["found a", "found b"]] * 3


def test_an_answer_that_comes_after_its_loop_was_closed_disturbs_nobody(
    complaints: list[Any],
) -> None:
    release, ended = Signal(), threading.Event()

    class Slow(World):
        def search(self, step: Search) -> Any:
            release.wait()
            return step.text

    (outcome,) = asyncio.run(
        arun(one(Together(searches("x"), Deadline.after(0.02), 1)), Slow(can_await_calls=False))
    )
    assert outcome.late
    release.set()
    # Another task of the same pool, to know that the late one was dealt with by then or soon.
    threads._threads.start(ended.set)
    assert ended.wait(PATIENCE)
    gc.collect()
    assert complaints == []


def test_a_loop_that_closes_just_as_the_answer_comes_disturbs_nobody(
    complaints: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClosingLoop(asyncio.SelectorEventLoop):
        """Closed between the question whether it is and the call that needs it open."""

        def is_closed(self) -> bool:
            return threading.current_thread() is threading.main_thread() and super().is_closed()

    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(threads, "_threads", threads.Threads())
    begun, release, ran_in = threading.Event(), threading.Event(), []

    def call() -> None:
        ran_in.append(threading.current_thread())
        begun.set()
        release.wait(PATIENCE)

    loop = ClosingLoop()
    waiting = loop.create_task(run_in_thread(call))
    loop.run_until_complete(asyncio.sleep(0))
    assert begun.wait(PATIENCE)
    waiting.cancel()
    loop.run_until_complete(asyncio.wait([waiting]))
    loop.close()
    release.set()
    ran_in[0].join(PATIENCE)
    assert not ran_in[0].is_alive()
    assert complaints == []


async def test_many_flows_at_once_do_not_mix() -> None:
    def flow(name: str) -> Flow[list[Any]]:
        outcomes = yield from own_and(searches(*(f"{name}{i}" for i in range(5))), Deadline(), 3)
        return [it.value for it in outcomes]

    for native in (True, False):
        world = World(can_await_calls=native)
        results = await asyncio.gather(*(arun(flow(name), world) for name in "abcdefghij"))
        assert results == [[f"found {name}{i}" for i in range(5)] for name in "abcdefghij"]
