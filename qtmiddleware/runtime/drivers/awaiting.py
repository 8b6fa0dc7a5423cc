"""Perform the steps of a flow without blocking the event loop.

Asynchronous functions run as tasks of the running loop. Synchronous functions run in daemon
threads: the original search always gets a thread, and the middleware's `Bulkhead` limits the
threads of all other steps.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.observing import NOT_OBSERVED, Ending, acall_hook
from qtmiddleware.runtime.steps import (
    Ask,
    Beside,
    Flow,
    FunctionStopped,
    Join,
    Leaf,
    Outcome,
    Performer,
    Recall,
    Rerank,
    Search,
    Step,
    T,
    Tell,
    Together,
    choose_model,
    list_single_steps,
    resume_flow,
)
from qtmiddleware.runtime.threads import copy_context_with_bulkhead, run_in_thread
from qtmiddleware.types import NEVER, Deadline

# How many seconds to wait for cancelled tasks to clean up. After that nobody waits for them.
DRAIN_SECONDS: Final = 0.02


def _start_step(step: Leaf, performer: Performer) -> Awaitable[Any]:
    """Start *step* and return an awaitable of its result."""
    if isinstance(step, Search):
        return (
            performer.asearch(step)
            if performer.can_await_calls
            else run_in_thread(partial(performer.search, step))
        )
    if isinstance(step, Ask):
        # A model cannot be awaited if the user passed a synchronous client.
        model = choose_model(step, performer)
        if getattr(model, "can_async", True):
            return model.acomplete(step.prompt, step.deadline)
        return run_in_thread(partial(model.complete, step.prompt, step.deadline))
    if isinstance(step, Rerank):
        return run_in_thread(partial(performer.rerank, step))
    if isinstance(step, Tell):
        return acall_hook(step.hook, step.retrieval, performer.bulkhead)
    if isinstance(step, Join):
        return asyncio.wrap_future(step.flight.result)
    if isinstance(step, Recall):
        return _recall(step.call)
    return (
        performer.aembed(step.texts)
        if performer.can_await_calls
        else run_in_thread(partial(performer.embed, step.texts))
    )


async def _recall(call: Callable[[], Any]) -> Any:
    """Return the result of *call*. Only a function that is not asynchronous needs a thread."""
    result = call() if is_async(call) else await run_in_thread(call)
    return await result if inspect.isawaitable(result) else result


async def _perform_step(step: Leaf, performer: Performer) -> Any:
    """Perform *step*, report it to the observers, and return its result."""
    with step.observation as observation:
        return observation.keep_result(await _start_step(step, performer))


async def _attempt_step(step: Leaf, performer: Performer, start_time: float) -> Outcome:
    """Perform *step* and return its outcome. An exception becomes the outcome's error."""
    try:
        # Most steps are not observed: they are spared one more coroutine.
        value = await (
            _start_step(step, performer)
            if step.observation is NOT_OBSERVED
            else _perform_step(step, performer)
        )
    except Exception as error:
        return Outcome(error=error, seconds=perf_counter() - start_time, began=start_time)
    return Outcome(value, seconds=perf_counter() - start_time, began=start_time)


def _is_task_cancelled() -> bool:
    """Return whether somebody has cancelled the task that is running now."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class _Batch:
    """Performs several steps, each in its own task, and calls *report* once with all outcomes.

    The last task to end calls *report* directly, so that no other task has to wake up. At the
    deadline all running tasks are cancelled, and their steps count as late. Then *report* is called
    as soon as the tasks have cleaned up, but no later than `DRAIN_SECONDS` after the deadline.
    """

    __slots__ = (
        *("_begun", "_context", "_deadline", "_loop", "_next", "_open", "_outcomes"),
        *("_steps", "_tasks", "_report", "_timer", "_performer"),
    )

    def __init__(
        self,
        group: Together,
        performer: Performer,
        context: Context,
        report: Callable[[list[Outcome]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps = group.steps
        self._deadline = group.deadline
        self._performer = performer
        self._context = context
        self._report: Callable[[list[Outcome]], None] | None = report
        self._outcomes: list[Outcome | None] = [None] * len(group.steps)
        self._open = len(group.steps)
        self._next = 0
        self._begun: dict[int, float] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        seconds = group.deadline.remaining()
        self._timer = (
            None if seconds == NEVER else self._loop.call_later(seconds, self._end_at_deadline)
        )

    def launch_steps(self, max_steps: int) -> None:
        """Start up to *max_steps* of the waiting steps; none if the deadline has passed."""
        if self._deadline.passed:
            self._end_at_deadline()
        elif not self._open:
            self._report_outcomes()
        while max_steps and self._next < len(self._steps) and self._report is not None:
            max_steps, position, self._next = max_steps - 1, self._next, self._next + 1
            # A task copies the context that it is made in. The context is not passed as an argument
            # because older task factories do not accept it.
            task = self._context.run(self._loop.create_task, self._perform_step_at(position))
            # A factory of eager tasks may have performed the step already.
            if self._outcomes and self._outcomes[position] is None:
                self._tasks[position] = task
                task.add_done_callback(self._record_ended_task)

    async def _perform_step_at(self, position: int) -> None:
        """Perform the step at *position* and record its outcome."""
        began = self._begun[position] = perf_counter()
        try:
            outcome = await _attempt_step(self._steps[position], self._performer, began)
        except asyncio.CancelledError as error:
            if _is_task_cancelled():
                raise
            # Nobody cancelled the task: something inside the function was cancelled.
            outcome = Outcome(error=error)
        if (task := self._tasks.pop(position, None)) is not None:
            # The outcome is reported here, so the loop need not call back in its next iteration.
            task.remove_done_callback(self._record_ended_task)
        self._record_outcome(position, outcome)
        # Breaks a reference cycle: in Python 3.12 and 3.13 an error's traceback refers to this
        # frame.
        del outcome

    def _record_ended_task(self, task: asyncio.Task[None]) -> None:
        """Record the outcome of a *task* that was cancelled or interrupted."""
        position = next(key for key, other in self._tasks.items() if other is task)
        del self._tasks[position]
        error = None if task.cancelled() else task.exception()
        outcome = self._make_late_outcome(position) if error is None else Outcome(error=error)
        self._record_outcome(position, outcome)

    def _record_outcome(self, position: int, outcome: Outcome) -> None:
        """Store the outcome of the step at *position*, and start the next waiting step, if any.

        After the last outcome, all outcomes are reported.
        """
        # After the batch has ended, a task that cleans up slowly may still report here.
        if self._report is None:
            return
        self._outcomes[position] = outcome
        self._open -= 1
        if not self._open:
            self._report_outcomes()
        elif self._next < len(self._steps):
            self.launch_steps(1)

    def _end_at_deadline(self) -> None:
        """Cancel the running steps, and report all outcomes once the steps have cleaned up."""
        self._next = len(self._steps)
        if self._cancel_tasks("late"):
            self._timer = self._loop.call_later(DRAIN_SECONDS, self._report_outcomes)
        else:
            self._report_outcomes()

    def _report_outcomes(self) -> None:
        """Report all outcomes. A step without an outcome counts as late."""
        # Cleared first, so that the outcomes are reported only once.
        report, self._report = self._report, None
        if self._timer is not None:
            self._timer.cancel()
        if report is not None:
            for task in self._tasks.values():
                task.remove_done_callback(self._record_ended_task)
            outcomes, self._outcomes = self._outcomes, []
            report(
                [
                    outcome or self._make_late_outcome(position)
                    for position, outcome in enumerate(outcomes)
                ]
            )

    def _make_late_outcome(self, position: int) -> Outcome:
        """Return a late outcome for the step at *position*."""
        now = perf_counter()
        began = self._begun.get(position, now)
        return Outcome(late=True, seconds=now - began, began=began)

    def _cancel_tasks(self, ending: Ending) -> list[asyncio.Task[None]]:
        """Cancel and return the running tasks. Report *ending* to the observers for each task."""
        tasks = list(self._tasks.values())
        for step, outcome in zip(self._steps, self._outcomes, strict=True):
            if outcome is None:
                step.observation.end(ending)
                if isinstance(step, Ask):
                    step.deadline.cancel()
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """Cancel the running steps without reporting their outcomes.

        Waits at most `DRAIN_SECONDS` for the tasks to clean up.
        """
        if self._report is None or self._loop.is_closed():
            return
        self._report = None
        self._report_outcomes()
        tasks = self._cancel_tasks("cancelled")
        # A coroutine that is being closed, for example because its loop was closed, must not await
        # anything.
        if tasks and not isinstance(sys.exception(), GeneratorExit):
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS)


def _set_result(future: asyncio.Future[T], value: T) -> None:
    """Set the result of *future*, unless the future is done."""
    # The caller may have been cancelled while it waited.
    if not future.done():
        future.set_result(value)


async def _perform_group(group: Together, performer: Performer, context: Context) -> list[Outcome]:
    """Perform the steps of *group* at the same time and return their outcomes."""
    outcomes: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    batch = _Batch(group, performer, context, partial(_set_result, outcomes))
    try:
        batch.launch_steps(group.limit)
        return await outcomes
    finally:
        await batch.close()


class _Branch:
    """A flow that runs at the same time as the caller's search.

    A batch is the flow's next group of steps. The last task of a batch starts the next batch.
    """

    __slots__ = ("_batch", "_context", "_flow", "_performer", "_places", "_step", "outcome")

    def __init__(self, step: Beside, performer: Performer, context: Context) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._flow = step.flow
        self._performer = performer
        self._context = context
        # The caller's search takes one of the places.
        self._places = step.limit - 1
        self._step: Step | None = None
        self._batch: _Batch | None = None

    def advance_flow(self, outcomes: list[Outcome] | None = None) -> None:
        """Send the last step's *outcomes* to the flow, and start the flow's next step.

        At the start of the flow, *outcomes* is ``None``.
        """
        self._batch = None
        try:
            # Variables that the flow sets must not stay in the caller's context.
            self._step = step = self._context.run(resume_flow, self._flow, self._step, outcomes)
        except StopIteration as stop:
            _set_result(self.outcome, Outcome(stop.value))
        except BaseException as error:
            _set_result(self.outcome, Outcome(error=error))
            if not isinstance(error, Exception):
                raise
        else:
            group = (
                step
                if isinstance(step, Together)
                else Together(list_single_steps(step), Deadline(), 1)
            )
            self._batch = batch = _Batch(group, self._performer, self._context, self.advance_flow)
            batch.launch_steps(min(self._places, group.limit))

    async def finish_flow(self, search_outcome: Outcome) -> list[Outcome]:
        """Wait for the flow and return two outcomes: first the search's, then the flow's.

        If the search failed, the flow is not awaited and counts as late.
        """
        if search_outcome.error is not None:
            return [search_outcome, Outcome(late=True)]
        # The caller's search has ended, so one more step may be under way.
        self._places += 1
        if self._batch is not None:
            self._batch.launch_steps(1)
        return [search_outcome, await self.outcome]

    async def close(self) -> None:
        """Cancel the running steps and close the flow."""
        batch, self._batch = self._batch, None
        try:
            if batch is not None:
                await batch.close()
        finally:
            self._context.run(self._flow.close)


async def _perform_with_flow(step: Beside, performer: Performer, context: Context) -> list[Outcome]:
    """Perform the search of *step* in this task and its flow at the same time.

    Returns two outcomes: first the search's, then the flow's.
    """
    # The flow gets a copy of the context: its variables must not reach the caller's other steps.
    branch = _Branch(step, performer, context.copy())
    try:
        branch.advance_flow()
        # The outcome is not kept in a variable: its error's traceback refers to this frame.
        return await branch.finish_flow(await _attempt_step(step.search, performer, perf_counter()))
    finally:
        await branch.close()


async def arun(flow: Flow[T], performer: Performer) -> T:
    """Perform *flow* to its end and return its result, without blocking the running loop."""
    # Copied now, because the original search runs in the caller's context and may change it.
    context = copy_context_with_bulkhead(performer.bulkhead)
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(await _perform_group(step, performer, context))
                continue
            if isinstance(step, Beside):
                step = flow.send(await _perform_with_flow(step, performer, context))
                continue
            try:
                answer = await _perform_step(step, performer)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except FunctionStopped as stopped:
        # A coroutine cannot raise a StopIteration.
        raise RuntimeError("the function raised StopIteration") from stopped.error
    finally:
        flow.close()
