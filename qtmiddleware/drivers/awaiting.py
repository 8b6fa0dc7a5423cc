"""The driver that awaits.

Asynchronous functions run as tasks of the running loop; synchronous ones in daemon threads of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.deadline import NEVER, Deadline
from qtmiddleware.drivers.threads import in_thread
from qtmiddleware.drivers.world import Flow, T, World
from qtmiddleware.errors import ModelError
from qtmiddleware.steps import Ask, Leaf, Outcome, Search, Together

# How long cancelled tasks may take to clean up before they are left to themselves.
DRAIN_SECONDS: Final = 0.02


def _begun(step: Leaf, world: World) -> Awaitable[Any]:
    """The answer of one step, to be awaited."""
    if isinstance(step, Ask):
        model = world.model
        if model is None:
            raise ModelError("unavailable", "no language model is configured")
        if getattr(model, "can_async", True):
            return model.acomplete(step.prompt, step.deadline)
        return in_thread(partial(model.complete, step.prompt, step.deadline))
    if isinstance(step, Search):
        return world.asearch(step) if world.native_async else in_thread(partial(world.search, step))
    return world.aembed(step.texts) if world.native_async else in_thread(partial(world.embed, step.texts))


async def _aoutcome(step: Leaf, world: World) -> Outcome:
    began = perf_counter()
    try:
        value = await _begun(step, world)
    except Exception as error:
        return Outcome(error=error, seconds=perf_counter() - began)
    return Outcome(value, seconds=perf_counter() - began)


async def _limited(step: Leaf, world: World, slots: asyncio.Semaphore, deadline: Deadline) -> Outcome:
    async with slots:
        return Outcome(late=True) if deadline.passed else await _aoutcome(step, world)


def _tasks(together: Together, world: World) -> list[asyncio.Task[Outcome]]:
    loop = asyncio.get_running_loop()
    if len(together.steps) <= together.limit:
        return [loop.create_task(_aoutcome(step, world)) for step in together.steps]
    slots = asyncio.Semaphore(together.limit)
    never = Deadline()
    return [
        loop.create_task(_limited(step, world, slots, never if position < together.essential else together.deadline))
        for position, step in enumerate(together.steps)
    ]


async def _drained(tasks: Sequence[asyncio.Task[Outcome]]) -> None:
    """Cancel *tasks* and let them clean up."""
    open_tasks = [task for task in tasks if not task.done()]
    for task in open_tasks:
        task.cancel()
    if open_tasks:
        await asyncio.wait(open_tasks, timeout=DRAIN_SECONDS)


async def _atogether(together: Together, world: World) -> list[Outcome]:
    tasks = _tasks(together, world)
    essential = tasks[: together.essential]
    try:
        if essential:
            await asyncio.wait(essential)
        if all(task.result().error is None for task in essential):
            left = together.deadline.remaining()
            rest = [task for task in tasks if not task.done()]
            if rest and left > 0:
                await asyncio.wait(rest, timeout=None if left == NEVER else left)
    finally:
        for step, task in zip(together.steps, tasks, strict=True):
            if isinstance(step, Ask) and not task.done():
                step.deadline.cancel()
        await _drained(tasks)
    return [_ended(task) for task in tasks]


def _ended(task: asyncio.Task[Outcome]) -> Outcome:
    if not task.done() or task.cancelled():
        return Outcome(late=True)
    error = task.exception()
    return task.result() if error is None else Outcome(error=error)


async def arun(flow: Flow[T], world: World) -> T:
    """Perform *flow* to its end, awaiting."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(await _atogether(step, world))
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
