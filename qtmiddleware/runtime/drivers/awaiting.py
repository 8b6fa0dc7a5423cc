"""The driver that awaits.

Asynchronous functions run as tasks of the running loop; synchronous ones in daemon threads of ours, of which the steps
beside the original's own search take as many as the middleware's bulkhead has.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Sequence
from contextvars import Context, copy_context
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.runtime.observing import Ending, atell
from qtmiddleware.runtime.steps import (
    Ask,
    Beside,
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
        return Outcome(error=error, seconds=perf_counter() - began, began=began)
    return Outcome(value, seconds=perf_counter() - began, began=began)


async def _perform_together(
    together: Together, world: World, context: Context, slots: asyncio.Semaphore | None = None
) -> list[Outcome]:
    """Perform each step in a task; they share *slots* with what else is performed for the same caller."""
    loop, deadline, steps = asyncio.get_running_loop(), together.deadline, together.steps
    places = slots or asyncio.Semaphore(together.limit)
    beginnings: dict[int, float] = {}

    async def perform(position: int, step: Leaf) -> Outcome:
        try:
            async with places:
                beginnings[position] = now = perf_counter()
                return Outcome(late=True, began=now) if deadline.passed else await _attempt(step, world)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled the task: the function itself was given up by somebody of its own.
            return Outcome(error=error)

    # Each task copies the context it is made in. Not handed over as an argument, which older factories do not take.
    tasks = [context.run(loop.create_task, perform(position, step)) for position, step in enumerate(steps)]
    ending: Ending = "cancelled"
    try:
        left = deadline.remaining()
        if tasks and left > 0:
            await _wait(tasks, left)
        ending = "late"
    finally:
        under_way = [] if loop.is_closed() else [task for task in tasks if not task.done()]
        if under_way:
            for step, task in zip(steps, tasks, strict=True):
                if task in under_way:
                    step.observation.end(ending)
                    if isinstance(step, Ask):
                        step.deadline.cancel()
            await _drain(under_way)
    now = perf_counter()
    return [_read_outcome(task, beginnings.get(position, now), now) for position, task in enumerate(tasks)]


async def _wait(tasks: Sequence[asyncio.Task[Any]], seconds: float = NEVER) -> None:
    """Wait until all *tasks* have ended, for *seconds* at most: `asyncio.wait` without the sets that it makes."""
    loop, under_way = asyncio.get_running_loop(), len(tasks)
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def count_down(_: asyncio.Task[Any]) -> None:
        nonlocal under_way
        under_way -= 1
        if not under_way:
            wake()

    for task in tasks:
        task.add_done_callback(count_down)
    timer = None if seconds == NEVER else loop.call_later(seconds, wake)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        if under_way:
            for task in tasks:
                task.remove_done_callback(count_down)


def _read_outcome(task: asyncio.Task[Outcome], began: float, now: float) -> Outcome:
    if not task.done() or task.cancelled():
        return Outcome(late=True, seconds=now - began, began=began)
    error = task.exception()
    return task.result() if error is None else Outcome(error=error, began=began)


async def _drain(tasks: Sequence[asyncio.Task[Any]], seconds: float | None = DRAIN_SECONDS) -> None:
    """Cancel *tasks* and let them clean up, for *seconds* at most."""
    for task in tasks:
        task.cancel()
    # A coroutine that is thrown away, as if its loop was closed in the middle, can wait for nothing.
    if tasks and not isinstance(sys.exception(), GeneratorExit):
        await asyncio.wait(tasks, timeout=seconds)


async def _perform_beside(beside: Beside, world: World, context: Context) -> list[Outcome]:
    """Perform the search in the caller's own task and the flow in a task of its own."""
    loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(beside.limit)
    task = context.run(loop.create_task, _drive(beside.flow, world, None, slots))
    outcome, ending = Outcome(late=True), Outcome(late=True)
    try:
        async with slots:
            outcome = await _attempt(beside.search, world)
        if outcome.error is None:
            await _wait([task])
    finally:
        if not (loop.is_closed() or task.done()):
            # It ends by itself: what it waits for is drained there.
            await _drain([task], None)
    if task.done() and not task.cancelled():
        error = task.exception()
        ending = Outcome(task.result()) if error is None else Outcome(error=error)
    return [outcome, ending]


async def arun(flow: Flow[T], world: World) -> T:
    """Perform *flow* to its end, awaiting."""
    # As it is before the original's own search, which runs in the caller's, can set anything in it.
    return await _drive(flow, world, context_within(world.bulkhead))


async def _drive(flow: Flow[T], world: World, context: Context | None, slots: asyncio.Semaphore | None = None) -> T:
    """Perform *flow*, its steps within *context* or, without one, within this task's own."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(await _perform_together(step, world, context or copy_context(), slots))
                continue
            if isinstance(step, Beside):
                step = flow.send(await _perform_beside(step, world, context or copy_context()))
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
