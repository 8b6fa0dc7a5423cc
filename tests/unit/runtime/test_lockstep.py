"""Several flows performed side by side as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Barrier
from typing import Any

import pytest

from qtmiddleware.runtime.drivers import Bulkhead, arun, run
from qtmiddleware.runtime.steps import Flow, Outcome, Search, Together, gather_flows
from qtmiddleware.types import NEVER, Deadline
from tests.support.waiting import PATIENCE


def sent(flow: Flow[Any], answers: Sequence[Sequence[Any]]) -> tuple[list[list[str]], Any]:
    """What *flow* asked for in each round, answered with *answers*, and its result."""
    asked: list[list[str]] = []
    step = next(flow)
    for answer in answers:
        asked.append([it.text for it in step.steps])
        try:
            step = flow.send([Outcome(it) for it in answer])
        except StopIteration as stop:
            return asked, stop.value
    raise AssertionError("the flow did not end")


def rounds(name: str, *counts: int, deadline: float = NEVER) -> Flow[list[Any]]:
    """A flow that asks for as many things in each round and returns all answers."""
    got: list[Any] = []
    for turn, count in enumerate(counts):
        steps = [Search(f"{name}{turn}{number}") for number in range(count)]
        got.extend(it.value for it in (yield Together(steps, Deadline(deadline), 8)))
    return got


def test_what_flows_wait_for_at_the_same_time_is_asked_for_at_the_same_time() -> None:
    flow = gather_flows([rounds("a", 1, 2), rounds("b", 2), rounds("c", 1, 1, 1)], max_steps=4)
    asked, result = sent(flow, [[1, 2, 3, 4], [5, 6, 7], [8]])
    assert asked == [["a00", "b00", "b01", "c00"], ["a10", "a11", "c10"], ["c20"]]
    assert result == [[1, 5, 6], [2, 3], [4, 7, 8]]


def test_no_flow_is_no_result() -> None:
    with pytest.raises(StopIteration) as stopped:
        next(gather_flows([], max_steps=4))
    assert stopped.value.value == []


def test_a_flow_that_asks_for_nothing_has_its_place() -> None:
    flow = gather_flows([rounds("a"), rounds("b", 1), rounds("c", 0, 1)], max_steps=4)
    assert sent(flow, [[1], [2]]) == ([["b00"], ["c10"]], [[], [1], [2]])


def test_one_flow_alone_is_what_it_was() -> None:
    assert sent(gather_flows([rounds("a", 2, 1)], max_steps=4), [[1, 2], [3]]) == (
        [["a00", "a01"], ["a10"]],
        [[1, 2, 3]],
    )


def test_the_last_deadline_and_the_own_limit_count() -> None:
    step = next(
        gather_flows([rounds("a", 1, deadline=5.0), rounds("b", 1, deadline=9.0)], max_steps=3)
    )
    assert (step.deadline.at, step.limit) == (9.0, 3)  # type: ignore[union-attr]


def test_an_error_of_one_flow_passes_through() -> None:
    error = ValueError("broken")

    def broken() -> Flow[None]:
        yield Together([Search("x")], Deadline(), 1)
        raise error

    flow = gather_flows([rounds("a", 1, 1), broken()], max_steps=2)
    next(flow)
    with pytest.raises(ValueError, match="broken") as caught:
        flow.send([Outcome(1), Outcome(2)])
    assert caught.value is error


def test_both_drivers_perform_it_with_everything_in_flight_at_once() -> None:
    together = Barrier(4, timeout=PATIENCE)

    class World:
        can_await_calls = False
        model = None
        bulkhead = Bulkhead()

        def search(self, step: Search) -> str:
            together.wait()
            return step.text.upper()

    for perform in (run, lambda flow, world: asyncio.run(arun(flow, world))):
        flows = [rounds(name, 1, 1) for name in "abcd"]
        assert perform(gather_flows(flows, max_steps=4), World()) == [  # type: ignore[arg-type]
            [f"{name}00".upper(), f"{name}10".upper()] for name in "abcd"
        ]


def alone(name: str) -> Flow[Any]:
    """A flow that searches by a step of its own and answers what came, or what was raised."""
    try:
        return (yield Search(name))
    except Exception as error:
        return error


def test_steps_that_stand_alone_are_performed_together_and_answered_alone() -> None:
    flow = gather_flows([alone("a"), rounds("b", 2), alone("c")], max_steps=4)
    step = next(flow)
    assert [it.text for it in step.steps] == ["a", "b00", "b01", "c"]  # type: ignore[union-attr]
    error = ValueError("down")
    with pytest.raises(StopIteration) as stopped:
        flow.send([Outcome("A"), Outcome(1), Outcome(2), Outcome(error=error)])
    assert stopped.value.value == ["A", [1, 2], error]


def test_a_step_that_stands_alone_is_waited_for_unless_there_is_a_deadline() -> None:
    endless = next(gather_flows([alone("a"), rounds("b", 1, deadline=5.0)], max_steps=4))
    bounded = next(
        gather_flows(
            [alone("a"), rounds("b", 1, deadline=5.0)], max_steps=4, deadline=Deadline(7.0)
        )
    )
    assert (endless.deadline.at, bounded.deadline.at) == (NEVER, 7.0)  # type: ignore[union-attr]


def test_a_late_step_that_stands_alone_is_raised_where_it_stood() -> None:
    flow = gather_flows([alone("a")], max_steps=4)
    next(flow)
    with pytest.raises(StopIteration) as stopped:
        flow.send([Outcome(late=True)])
    assert isinstance(stopped.value.value[0], TimeoutError)


def test_what_one_flow_raises_closes_the_others() -> None:
    closed = []

    def patient() -> Flow[None]:
        try:
            yield Search("patient")
            yield Search("once more")
        finally:
            closed.append(True)

    def broken() -> Flow[None]:
        yield Search("x")
        raise ValueError("broken")

    flow = gather_flows([patient(), broken()], max_steps=2)
    next(flow)
    assert closed == []
    with pytest.raises(ValueError, match="broken"):
        flow.send([Outcome(1), Outcome(2)])
    assert closed == [True]
