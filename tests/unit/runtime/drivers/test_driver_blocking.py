"""The driver that blocks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from typing import Any

import pytest
from driver_worlds import Signal, World, ask, one, own_and, searches

from qtmiddleware.runtime.drivers import Bulkhead, run
from qtmiddleware.runtime.steps import Beside, Flow, Search, Together
from qtmiddleware.types import Deadline
from tests.support.waiting import PATIENCE, wait_until

Waits = Generator[Signal, None, Any]


def test_the_callers_own_search_runs_in_the_callers_thread_and_the_others_in_daemons() -> None:
    def search(text: str) -> Waits:
        return threading.current_thread()
        yield

    steps = searches("own", "a", "b")
    own, *others = run(own_and(steps, Deadline(), 3), World(search, can_await_calls=False))
    assert own.value is threading.current_thread()
    assert all(it.value is not threading.current_thread() for it in others)
    assert all(it.value.daemon for it in others)


def test_a_step_alone_runs_in_the_callers_thread() -> None:
    def search(text: str) -> Waits:
        return threading.current_thread()
        yield

    assert run(one(Search("x")), World(search, can_await_calls=False)) is threading.current_thread()


class Watched:
    """A flow that is watched for being closed."""

    def __init__(self, step: Any) -> None:
        self.closed = False
        self._step = step

    def flow(self) -> Flow[Any]:
        try:
            return (yield self._step)
        finally:
            self.closed = True


def test_an_interrupt_in_the_callers_own_search_reaches_the_caller_and_gives_up_the_rest() -> None:
    release, asked = Signal(), Signal()
    question = ask()

    def search(text: str) -> Waits:
        yield asked
        signal.raise_signal(signal.SIGINT)

    def model(_: Any) -> Waits:
        asked.set()
        yield release

    beside = Watched(Together([question], Deadline(), 2))
    watched = Watched(Beside(Search("own"), beside.flow(), 2))
    with pytest.raises(KeyboardInterrupt):
        run(watched.flow(), World(search, model=model, can_await_calls=False))
    release.set()
    assert watched.closed
    assert beside.closed
    assert question.deadline.passed


def test_an_interrupt_while_waiting_for_the_others_reaches_the_caller() -> None:
    release, interrupted, sent = Signal(), threading.Event(), threading.Event()
    question = ask()

    def interrupt(*_: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def send() -> bool:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return interrupted.is_set()

    def model(_: Any) -> Waits:
        # A signal that comes a moment before the caller waits is only noticed with the next.
        wait_until(send)
        sent.set()
        yield release

    watched = Watched(Together([question], Deadline(), 1))
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(watched.flow(), World(model=model, can_await_calls=False))
        assert sent.wait(PATIENCE)
    finally:
        signal.signal(signal.SIGINT, before)
    release.set()
    assert watched.closed
    assert question.deadline.passed


def test_after_an_interrupt_nothing_further_is_begun() -> None:
    begun: list[str] = []
    first, release, ended = Signal(), Signal(), Signal()

    def search(text: str) -> Waits:
        begun.append(text)
        if text == "own":
            yield first
            raise KeyboardInterrupt
        first.set()
        yield release
        ended.set()

    steps = searches("own", "a", "b", "c")
    with pytest.raises(KeyboardInterrupt):
        run(own_and(steps, Deadline(), 2), World(search, can_await_calls=False))
    release.set()
    ended.wait()
    assert sorted(begun) == ["a", "own"]


def test_a_stop_iteration_of_the_function_is_never_taken_for_the_flows_end() -> None:
    class Ending(World):
        def search(self, step: Search) -> Any:
            return next(iter([]))

    with pytest.raises(RuntimeError) as caught:
        run(one(Search("x")), Ending(can_await_calls=False))
    assert isinstance(caught.value.__cause__, StopIteration)
    (outcome,) = run(one(Together(searches("x"), Deadline(), 1)), Ending(can_await_calls=False))
    assert isinstance(outcome.error, StopIteration)


def test_the_thread_that_takes_a_flow_on_needs_no_second_one_for_its_next_step() -> None:
    ended, threads = Signal(), []

    def search(text: str) -> Waits:
        if text == "own":
            yield ended
            return text
        threads.append(threading.current_thread())
        if text == "b":
            ended.set()
        return text

    def rounds() -> Flow[list[Any]]:
        outcomes = []
        for text in ("a", "b"):
            outcomes += yield Together(searches(text), Deadline(), 8)
        return [outcome.value for outcome in outcomes]

    world = World(search, can_await_calls=False)
    world.bulkhead = Bulkhead(1)
    own, beside = run(one(Beside(Search("own"), rounds(), 8)), world)
    assert (own.value, beside.value) == ("own", ["a", "b"])
    assert len(set(threads)) == 1


def test_flows_of_many_threads_do_not_mix() -> None:
    def flow(name: str) -> Flow[list[Any]]:
        outcomes = yield from own_and(searches(*(f"{name}{i}" for i in range(5))), Deadline(), 3)
        return [it.value for it in outcomes]

    results: dict[str, list[Any]] = {}

    def caller(name: str) -> None:
        results[name] = run(flow(name), World(can_await_calls=False))

    callers = [threading.Thread(target=caller, args=(name,)) for name in "abcdefghijkl"]
    for it in callers:
        it.start()
    for it in callers:
        it.join()
    assert results == {name: [f"found {name}{i}" for i in range(5)] for name in "abcdefghijkl"}
