"""Perform the steps of a flow while the caller blocks.

The original search runs in the caller's thread. All other steps run in daemon threads, which the
middleware's `Bulkhead` limits.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.background_loop import run_in_background_loop
from qtmiddleware.runtime.observing import Ending, call_hook
from qtmiddleware.runtime.steps import (
    Ask,
    Beside,
    Embed,
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
from qtmiddleware.runtime.threads import copy_context_with_bulkhead
from qtmiddleware.types import NEVER, Deadline


def _perform_step(step: Leaf, performer: Performer) -> Any:
    """Perform *step* in this thread, report it to the observers, and return its result."""
    with step.observation as observation:
        return observation.keep_result(_perform_unobserved_step(step, performer))


def _perform_unobserved_step(step: Leaf, performer: Performer) -> Any:
    if isinstance(step, Search):
        return performer.search(step)
    if isinstance(step, Embed):
        return performer.embed(step.texts)
    if isinstance(step, Rerank):
        return performer.rerank(step)
    if isinstance(step, Recall):
        result = step.call()
        if inspect.isawaitable(result):
            return run_in_background_loop(partial(_await_result, result), step.seconds)
        return result
    if isinstance(step, Tell):
        return call_hook(step.hook, step.retrieval)
    if isinstance(step, Join):
        raise TypeError("a flight must be joined within Together, which limits the wait")
    return choose_model(step, performer).complete(step.prompt, step.deadline)


async def _await_result(result: Awaitable[Any]) -> Any:
    return await result


def _attempt_step(
    step: Leaf, performer: Performer, caught_type: type[BaseException] = Exception
) -> Outcome:
    """Perform *step* and return its outcome.

    An exception of *caught_type* becomes the outcome's error. Other exceptions are raised.
    """
    began = perf_counter()
    try:
        value = _perform_step(step, performer)
    except caught_type as error:
        return Outcome(error=error, seconds=perf_counter() - began, began=began)
    return Outcome(value, seconds=perf_counter() - began, began=began)


class _Batch:
    """Several steps that threads perform at the same time for one caller.

    If *continue_flow* is given, the thread that completes the batch calls *continue_flow* and then
    performs the batch that *continue_flow* returns.
    """

    def __init__(
        self,
        group: Together,
        performer: Performer,
        context: Context,
        continue_flow: Callable[[_Batch], _Batch | None] | None = None,
    ) -> None:
        self.steps = group.steps
        self.deadline = group.deadline
        self._outcomes: list[Outcome | None] = [None] * len(group.steps)
        self._performer = performer
        self._context = context
        self._continue_flow = continue_flow
        self._done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._open = len(group.steps)
        self._is_over = False
        self.has_begun = False
        self._running: dict[int, float] = {}
        self._waiting: deque[int] = deque()
        for position, step in enumerate(group.steps):
            if isinstance(step, Join):
                # The flight calls back when it lands, so no thread needs to wait for it.
                step.flight.result.add_done_callback(
                    partial(self._record_flight_result, position, perf_counter())
                )
            else:
                self._waiting.append(position)

    @property
    def is_complete(self) -> bool:
        """Whether `wait_for_outcomes` can return the outcomes of all steps at once."""
        return self._done.qsize() == len(self.steps)

    def _record_flight_result(self, position: int, start_time: float, result: Future[Any]) -> None:
        """Store the *result* of a shared computation as the outcome of the step at *position*."""
        self._done.put(
            (
                position,
                Outcome(result.result(), seconds=perf_counter() - start_time, began=start_time),
            )
        )
        if self._continue_flow is not None and self.is_complete:
            # This thread belongs to the flight's leader, which answers another question and must
            # not do this question's work.
            with suppress(ModelError):
                self._performer.bulkhead.start(self._perform_batches)

    def launch_threads(self, max_threads: int, *, has_calling_thread: bool = False) -> None:
        """Start up to *max_threads* more threads for the waiting steps.

        If no thread can start and none is working yet, all waiting steps fail.

        Args:
            max_threads: The maximum number of threads to add.
            has_calling_thread: Whether the calling thread will also perform steps. If so, it
                counts as one of *max_threads*.
        """
        self.has_begun = self.has_begun or has_calling_thread
        for _ in range(min(max_threads, len(self._waiting)) - has_calling_thread):
            try:
                self._performer.bulkhead.start(self._perform_batches)
            except ModelError as error:
                while self._waiting and not self.has_begun:
                    self._done.put((self._waiting.popleft(), Outcome(error=error)))
                return
            self.has_begun = True

    def _perform_batches(self) -> None:
        """Perform this batch and the flow's next batches, until the caller's thread takes over."""
        batch: _Batch | None = self
        while batch is not None:
            batch.perform_steps()
            batch = (
                batch._continue_flow(batch)
                if batch._continue_flow is not None and batch.is_complete
                else None
            )

    def perform_steps(self) -> None:
        """Perform the waiting steps one after another in this thread."""
        while not (self._is_over or self.deadline.passed):
            try:
                position = self._waiting.popleft()
            except IndexError:
                return
            # Each step runs in a copy of the context: it sees what the caller has set, and nothing
            # that another step sets. `BaseException` is caught because in this thread nobody else
            # would notice an interrupt or exit.
            self._running[position] = perf_counter()
            outcome = self._context.copy().run(
                _attempt_step, self.steps[position], self._performer, BaseException
            )
            self._running.pop(position, None)
            self._done.put((position, outcome))
            # Breaks a reference cycle: the error's traceback refers to this frame.
            del outcome

    def wait_for_outcomes(self) -> list[Outcome]:
        """Wait for all outcomes, at most until the deadline, and return them.

        A step that has no outcome by then counts as late.
        """
        while self._open:
            seconds = self.deadline.remaining()
            try:
                position, outcome = self._done.get(timeout=None if seconds == NEVER else seconds)
            except queue.Empty:
                break
            self._outcomes[position] = outcome
            self._open -= 1
        return self.end_batch("late")

    def end_batch(self, late_ending: Ending) -> list[Outcome]:
        """End the batch and return the outcomes. A step without an outcome counts as late.

        *late_ending* is the outcome that the observers see for a late step. Returns an empty list
        if the batch has already ended.
        """
        if self._is_over:
            return []
        self._is_over = True
        running, now = self._running.copy(), perf_counter()
        self._performer.bulkhead.record_abandoned_calls(len(running))
        for position, step in enumerate(self.steps):
            if self._outcomes[position] is None:
                began = running.get(position, now)
                self._outcomes[position] = Outcome(late=True, seconds=now - began, began=began)
                step.observation.end(late_ending)
                if isinstance(step, Ask):
                    step.deadline.cancel()
        outcomes, self._outcomes = self._outcomes, [None] * len(self.steps)
        return [outcome for outcome in outcomes if outcome is not None]


def _perform_group(group: Together, performer: Performer, context: Context) -> list[Outcome]:
    """Perform the steps of *group* at the same time and return their outcomes."""
    batch = _Batch(group, performer, context)
    try:
        batch.launch_threads(group.limit)
        return batch.wait_for_outcomes()
    finally:
        batch.end_batch("cancelled")


class _Branch:
    """A flow that runs at the same time as the caller's search.

    A batch is the flow's next group of steps. During the search, the thread that completes a batch
    also starts the next one. After the search, the caller's thread does. So no thread only waits.
    """

    def __init__(self, step: Beside, performer: Performer, context: Context) -> None:
        self._flow = step.flow
        self._performer = performer
        self._context = context
        # The caller's search takes one of the places.
        self._places = step.limit - 1
        # Re-entrant: when the process is ending and no thread can start, a step is performed by the
        # thread that tried to start one.
        self._lock = threading.RLock()
        self._step: Step | None = None
        self._batch: _Batch | None = None
        self._outcome: Outcome | None = None
        self._has_caller = False

    def start_flow(self) -> None:
        """Start the flow and its first batch."""
        with self._lock:
            self._advance_flow(None)

    def finish_flow(self, search_outcome: Outcome) -> list[Outcome]:
        """Perform the rest of the flow and return two outcomes: the search's, then the flow's.

        If the search failed, the flow is not continued and counts as late.
        """
        if search_outcome.error is not None:
            return [search_outcome, Outcome(late=True)]
        with self._lock:
            self._has_caller = True
            # The search has ended, so one more step may run.
            self._places += 1
        if self._batch is not None:
            self._batch.launch_threads(1)
        while self._outcome is None and self._batch is not None:
            self._advance_flow(self._batch.wait_for_outcomes())
        return [search_outcome, self._outcome or Outcome(late=True)]

    def close(self) -> None:
        """Stop waiting for the running steps and close the flow."""
        with self._lock:
            self._has_caller = True
            batch, self._batch = self._batch, None
            if batch is not None:
                batch.end_batch("cancelled")
            self._flow.close()

    def _continue_flow(self, batch: _Batch) -> _Batch | None:
        """Continue the flow after *batch* is complete, and return the flow's next batch.

        Returns ``None`` if the flow has ended or the caller's thread will continue it.
        """
        with self._lock:
            if batch is not self._batch or self._has_caller or self._places < 1:
                return None
            self._advance_flow(batch.wait_for_outcomes(), has_calling_thread=True)
            return self._batch

    def _advance_flow(
        self, outcomes: list[Outcome] | None, *, has_calling_thread: bool = False
    ) -> None:
        """Send the last step's *outcomes* to the flow, and start the flow's next step.

        At the start of the flow, *outcomes* is ``None``. If *has_calling_thread* is true, the
        calling thread will also perform steps.
        """
        while True:
            self._batch = None
            try:
                # Variables that the flow sets must not stay in the caller's context.
                self._step = step = self._context.run(resume_flow, self._flow, self._step, outcomes)
            except StopIteration as stop:
                self._outcome = Outcome(stop.value)
                return
            except Exception as error:
                self._outcome = Outcome(error=error)
                return
            group = (
                step
                if isinstance(step, Together)
                else Together(list_single_steps(step), Deadline(), 1)
            )
            batch = _Batch(group, self._performer, self._context, self._continue_flow)
            batch.launch_threads(
                min(self._places, group.limit), has_calling_thread=has_calling_thread
            )
            self._batch = batch
            if batch.has_begun or not batch.is_complete:
                # A thread that has begun calls this method again when the batch is complete.
                return
            outcomes = batch.wait_for_outcomes()


def _perform_with_flow(step: Beside, performer: Performer, context: Context) -> list[Outcome]:
    """Perform the search of *step* in this thread and its flow at the same time.

    Returns two outcomes: first the search's, then the flow's.
    """
    # The flow gets a copy of the context, because its code runs in several threads in turn.
    branch = _Branch(step, performer, context.copy())
    try:
        branch.start_flow()
        # The outcome is not kept in a variable: its error's traceback refers to this frame.
        return branch.finish_flow(_attempt_step(step.search, performer))
    finally:
        branch.close()


def run(flow: Flow[T], performer: Performer) -> T:
    """Perform *flow* to its end and return its result. Blocks the calling thread."""
    # Copied now, because the original search runs in the caller's context and may change it.
    context = copy_context_with_bulkhead(performer.bulkhead)
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(_perform_group(step, performer, context))
                continue
            if isinstance(step, Beside):
                step = flow.send(_perform_with_flow(step, performer, context))
                continue
            try:
                answer = _perform_step(step, performer)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except FunctionStopped as stopped:
        raise stopped.error from None
    finally:
        flow.close()
