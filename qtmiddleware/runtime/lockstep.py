"""Several flows performed side by side as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtmiddleware.runtime.steps import Flow, Outcome, Step, T, Together
from qtmiddleware.types import NEVER, Deadline


def side_by_side(flows: Sequence[Flow[T]], *, limit: int, deadline: Deadline | None = None) -> Flow[list[T]]:
    """The results of *flows* in their order; what they wait for at the same time is performed at the same time.

    Nothing is waited for beyond *deadline*: a step that was late is answered so in a `Together` and raised as
    `TimeoutError` where it stood alone. What one flow raises is raised here, and the others are closed.
    """
    latest = NEVER if deadline is None else deadline.at
    results: dict[int, T] = {}
    waiting: dict[int, Step] = {}
    answers: dict[int, list[Outcome] | None] = dict.fromkeys(range(len(flows)))
    try:
        while answers:
            for position, answer in answers.items():
                try:
                    waiting[position] = _answered(flows[position], waiting.pop(position, None), answer)
                except StopIteration as stop:
                    results[position] = stop.value
            answers = {}
            if waiting:
                last = min(latest, max(map(_deadline_at, waiting.values())))
                steps = [it for step in waiting.values() for it in _steps(step)]
                outcomes = yield Together(steps, Deadline(last), limit)
                for position, step in waiting.items():
                    count = len(_steps(step))
                    answers[position], outcomes = outcomes[:count], outcomes[count:]
    finally:
        for flow in flows:
            flow.close()
    return [results[position] for position in range(len(flows))]


def _steps(step: Step) -> Sequence[Any]:
    return step.steps if isinstance(step, Together) else (step,)


def _deadline_at(step: Step) -> float:
    """When a step is given up; what stands alone or is essential is waited for."""
    return step.deadline.at if isinstance(step, Together) and not step.essential else NEVER


def _answered(flow: Flow[Any], asked: Step | None, outcomes: list[Outcome] | None) -> Step:
    """The next step of *flow* after the *outcomes* of what it *asked* for."""
    if asked is None or isinstance(asked, Together):
        return flow.send(outcomes)
    (outcome,) = outcomes or (Outcome(late=True),)
    if outcome.ok:
        return flow.send(outcome.value)
    return flow.throw(outcome.error or TimeoutError("there was no time left for one of several searches"))
