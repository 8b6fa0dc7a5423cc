"""The driver that awaits.

Asynchronous functions run as tasks of the running loop; synchronous ones in daemon threads of ours, of which the steps
beside the original's own search take as many as the middleware's bulkhead has.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Sequence
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.runtime.drivers.threads import context_within, in_thread, landing
from qtmiddleware.runtime.drivers.world import World, model_of
from qtmiddleware.runtime.steps import Ask, Flow, Join, Leaf, Outcome, Recall, Rerank, Search, T, Together
from qtmiddleware.types import NEVER

# How long cancelled tasks may take to clean up before they are left to themselves.
DRAIN_SECONDS: Final = 0.02


def _begun(step: Leaf, world: World) -> Awaitable[Any]:
    """The answer of one step, to be awaited."""
    if isinstance(step, Ask):
        model = model_of(step, world)
        if getattr(model, "can_async", True):
            return model.acomplete(step.prompt, step.deadline)
        return in_thread(partial(model.complete, step.prompt, step.deadline))
    if isinstance(step, Search):
        return world.asearch(step) if world.native_async else in_thread(partial(world.search, step))
    if isinstance(step, Rerank):
        return in_thread(partial(world.rerank, step))
    if isinstance(step, Join):
        return landing(step.flight)
    if isinstance(step, Recall):
        return in_thread(step.call)
    return world.aembed(step.texts) if world.native_async else in_thread(partial(world.embed, step.texts))


async def _aoutcome(step: Leaf, world: World) -> Outcome:
    began = perf_counter()
    try:
        value = await _begun(step, world)
    except Exception as error:
        return Outcome(error=error, seconds=perf_counter() - began)
    return Outcome(value, seconds=perf_counter() - began)


class _Race:
    """Steps performed as tasks, which count themselves down for the one who waits."""

    __slots__ = ("_deadline", "_loop", "_open", "_slots", "_waiter", "_world", "outcomes", "tasks")

    def __init__(self, together: Together, world: World, context: Context) -> None:
        steps = together.steps
        self.outcomes: list[Outcome | None] = [None] * len(steps)
        self._world = world
        self._deadline = together.deadline
        self._slots = asyncio.Semaphore(together.limit) if len(steps) > together.limit else None
        self._waiter: asyncio.Future[None] | None = None
        self._open = len(steps) - together.essential
        self._loop = loop = asyncio.get_running_loop()
        # Each task copies the context it is made in. Not handed over as an argument, which older factories do not take.
        self.tasks = [
            context.run(loop.create_task, self._perform(position, steps[position]))
            for position in range(together.essential, len(steps))
        ]

    async def here(self, position: int, step: Leaf) -> Outcome:
        """Perform one step in the caller's own task, however long it takes."""
        if self._slots is None:
            outcome = await _aoutcome(step, self._world)
        else:
            async with self._slots:
                outcome = await _aoutcome(step, self._world)
        self.outcomes[position] = outcome
        return outcome

    async def _perform(self, position: int, step: Leaf) -> None:
        began = perf_counter()
        try:
            if self._slots is None:
                value = await _begun(step, self._world)
                self.outcomes[position] = Outcome(value, seconds=perf_counter() - began)
                return
            async with self._slots:
                if not self._deadline.passed:
                    self.outcomes[position] = await _aoutcome(step, self._world)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled the task: the function itself was given up by somebody of its own.
            self.outcomes[position] = Outcome(error=error, seconds=perf_counter() - began)
        except Exception as error:
            self.outcomes[position] = Outcome(error=error, seconds=perf_counter() - began)
        finally:
            outcome = self.outcomes[position]
            if outcome is not None and isinstance(step, Ask) and step.heard is not None:
                step.heard(outcome)
            self._open -= 1
            if not self._open:
                self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until all tasks have ended or the deadline has passed."""
        left = self._deadline.remaining()
        if not self._open or left <= 0:
            return
        self._waiter = self._loop.create_future()
        timer = None if left == NEVER else self._loop.call_later(left, self._wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def cancel(self, steps: Sequence[Leaf]) -> list[asyncio.Task[None]]:
        """Cancel what is under way; answers the tasks that have to clean up."""
        if not self._open or self._loop.is_closed():
            return []
        for step, outcome in zip(steps, self.outcomes, strict=True):
            if outcome is None and isinstance(step, Ask):
                step.deadline.cancel()
        under_way = [task for task in self.tasks if not task.done()]
        for task in under_way:
            task.cancel()
        return under_way


async def _atogether(together: Together, world: World, context: Context) -> list[Outcome]:
    steps, essential = together.steps, together.essential
    race = _Race(together, world, context)
    try:
        # In the caller's own task, which is at work already: the others begin when this one first waits.
        is_well = True
        for position in range(essential):
            is_well &= (await race.here(position, steps[position])).error is None
        if is_well:
            await race.wait()
    finally:
        under_way = race.cancel(steps)
        # A coroutine that is thrown away, as where its loop was closed in the middle, can wait for nothing.
        if under_way and not isinstance(sys.exception(), GeneratorExit):
            await asyncio.wait(under_way, timeout=DRAIN_SECONDS)
    for position, task in enumerate(race.tasks, essential):
        if race.outcomes[position] is None and task.done() and not task.cancelled():
            error = task.exception()
            race.outcomes[position] = None if error is None else Outcome(error=error)
    return [outcome or Outcome(late=True) for outcome in race.outcomes]


async def arun(flow: Flow[T], world: World) -> T:
    """Perform *flow* to its end, awaiting."""
    # As it is before the original's own search, which runs in the caller's, can set anything in it.
    context = context_within(world.bulkhead)
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(await _atogether(step, world, context))
                continue
            try:
                answer = await _begun(step, world)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        flow.close()
