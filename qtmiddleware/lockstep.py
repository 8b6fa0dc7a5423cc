"""Several flows performed side by side as one."""

from __future__ import annotations

from collections.abc import Sequence

from qtmiddleware.deadline import Deadline
from qtmiddleware.steps import Flow, Outcome, T, Together


def side_by_side(flows: Sequence[Flow[T]], *, limit: int) -> Flow[list[T]]:
    """The results of *flows* in their order; what they wait for at the same time is performed at the same time.

    Every step of the flows must be a `Together` without essential steps, as those are of flows that only ask a model.
    """
    results: dict[int, T] = {}
    waiting: dict[int, Together] = {}
    answers: dict[int, list[Outcome] | None] = dict.fromkeys(range(len(flows)))
    while answers:
        for position, answer in answers.items():
            try:
                waiting[position] = flows[position].send(answer)  # type: ignore[assignment]
            except StopIteration as stop:
                results[position] = stop.value
        answers = {}
        if waiting:
            deadline = Deadline(max(step.deadline.at for step in waiting.values()))
            outcomes = yield Together([it for step in waiting.values() for it in step.steps], deadline, limit)
            for position, step in waiting.items():
                answers[position], outcomes = outcomes[: len(step.steps)], outcomes[len(step.steps) :]
            waiting = {}
    return [results[position] for position in range(len(flows))]
