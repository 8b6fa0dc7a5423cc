"""The driver that awaits.

Asynchronous functions run as tasks of the running loop; synchronous ones in daemon threads of ours, of which the steps
beside the original's own search take as many as the middleware's bulkhead has.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.runtime.observing import Ending, atell
from qtmiddleware.runtime.steps import (
    Ask,
    Flow,
    Join,
    Leaf,
    Outcome,
    Recall,
    Rerank,
    Search,
    T,
    Tell,
    Together,
    World,
    model_of,
)
from qtmiddleware.runtime.threads import context_within, in_thread
from qtmiddleware.types import NEVER

# How long cancelled tasks may take to clean up before they are left to themselves.
DRAIN_SECONDS: Final = 0.02


def _start(step: Leaf, world: World) -> Awaitable[Any]:
    """Start one step; its answer is to be awaited."""
    if isinstance(step, Ask):
        model = model_of(step, world)
        if getattr(model, "can_async", True):
            return model.acomplete(step.prompt, step.deadline)
        return in_thread(partial(model.complete, step.prompt, step.deadline))
    if isinstance(step, Search):
        return world.asearch(step) if world.native_async else in_thread(partial(world.search, step))
    if isinstance(step, Rerank):
        return in_thread(partial(world.rerank, step))
    if isinstance(step, Tell):
        return atell(step.hook, step.retrieval, world.bulkhead)
    if isinstance(step, Join):
        return asyncio.wrap_future(step.flight.result)
    if isinstance(step, Recall):
        return in_thread(step.call)
    return world.aembed(step.texts) if world.native_async else in_thread(partial(world.embed, step.texts))


async def _perform(step: Leaf, world: World) -> Any:
    """Perform one step; returns its answer."""
    with step.observation as observation:
        return observation.keep(await _start(step, world))


async def _attempt(step: Leaf, world: World) -> Outcome:
    began = perf_counter()
    try:
        value = await _perform(step, world)
    except Exception as error:
        return Outcome(error=error, seconds=perf_counter() - began)
    return Outcome(value, seconds=perf_counter() - began)


async def _perform_together(together: Together, world: World, context: Context) -> list[Outcome]:
    """Perform the essential steps in the caller's own task, however long they take, and the others in tasks."""
    loop, deadline, slots = asyncio.get_running_loop(), together.deadline, asyncio.Semaphore(together.limit)
    essential, others = together.steps[: together.essential], together.steps[together.essential :]

    async def perform(step: Leaf) -> Outcome:
        try:
            async with slots:
                return Outcome(late=True) if deadline.passed else await _attempt(step, world)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled the task: the function itself was given up by somebody of its own.
            return Outcome(error=error)

    # Each task copies the context it is made in. Not handed over as an argument, which older factories do not take.
    tasks = [context.run(loop.create_task, perform(step)) for step in others]
    outcomes = []
    ending: Ending = "cancelled"
    try:
        for step in essential:
            async with slots:
                outcomes.append(await _attempt(step, world))
        left = deadline.remaining()
        if tasks and left > 0 and all(it.error is None for it in outcomes):
            await asyncio.wait(tasks, timeout=None if left == NEVER else left)
            ending = "late"
    finally:
        under_way = [] if loop.is_closed() else [task for task in tasks if not task.done()]
        for step, task in zip(others, tasks, strict=True):
            if task in under_way:
                step.observation.end(ending)
                if isinstance(step, Ask):
                    step.deadline.cancel()
                task.cancel()
        # A coroutine that is thrown away, as where its loop was closed in the middle, can wait for nothing.
        if under_way and not isinstance(sys.exception(), GeneratorExit):
            await asyncio.wait(under_way, timeout=DRAIN_SECONDS)
    return outcomes + [_read_outcome(task) for task in tasks]


def _read_outcome(task: asyncio.Task[Outcome]) -> Outcome:
    if not task.done() or task.cancelled():
        return Outcome(late=True)
    error = task.exception()
    return task.result() if error is None else Outcome(error=error)


async def arun(flow: Flow[T], world: World) -> T:
    """Perform *flow* to its end, awaiting."""
    # As it is before the original's own search, which runs in the caller's, can set anything in it.
    context = context_within(world.bulkhead)
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(await _perform_together(step, world, context))
                continue
            try:
                answer = await _perform(step, world)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        flow.close()
