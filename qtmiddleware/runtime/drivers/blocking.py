"""The driver that blocks.

The original's own search is performed in the caller's thread, everything beside it in daemon
threads of the middleware's bulkhead.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.observing import Ending, tell
from qtmiddleware.runtime.steps import (
    Ask,
    Beside,
    Embed,
    Flow,
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
    leaves_of,
    model_of,
    resume,
)
from qtmiddleware.runtime.threads import context_within
from qtmiddleware.types import NEVER, Deadline


def _perform(step: Leaf, performer: Performer) -> Any:
    """Perform one step in this thread; returns its answer."""
    with step.observation as observation:
        return observation.keep(_call(step, performer))


def _call(step: Leaf, performer: Performer) -> Any:
    if isinstance(step, Search):
        return performer.search(step)
    if isinstance(step, Embed):
        return performer.embed(step.texts)
    if isinstance(step, Rerank):
        return performer.rerank(step)
    if isinstance(step, Recall):
        return step.call()
    if isinstance(step, Tell):
        return tell(step.hook, step.retrieval)
    if isinstance(step, Join):
        raise TypeError("a flight must be joined within Together, which limits the wait")
    return model_of(step, performer).complete(step.prompt, step.deadline)


def _attempt(step: Leaf, performer: Performer, caught: type[BaseException] = Exception) -> Outcome:
    began = perf_counter()
    try:
        value = _perform(step, performer)
    except caught as error:
        return Outcome(error=error, seconds=perf_counter() - began, began=began)
    return Outcome(value, seconds=perf_counter() - began, began=began)


class _Batch:
    """Steps performed by threads for one waiting caller.

    The thread that brings the last outcome calls *go_on*, if there is one, and works at the batch
    that it returns.
    """

    def __init__(
        self,
        together: Together,
        performer: Performer,
        context: Context,
        go_on: Callable[[_Batch], _Batch | None] | None = None,
    ) -> None:
        self.steps = together.steps
        self.deadline = together.deadline
        self._outcomes: list[Outcome | None] = [None] * len(together.steps)
        self._performer = performer
        self._context = context
        self._go_on = go_on
        self._done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._open = len(together.steps)
        self._is_over = False
        self.has_begun = False
        self._running: dict[int, float] = {}
        self._waiting: deque[int] = deque()
        for position, step in enumerate(together.steps):
            if isinstance(step, Join):
                # No thread is needed to wait for what another one does.
                step.flight.result.add_done_callback(partial(self._land, position, perf_counter()))
            else:
                self._waiting.append(position)

    @property
    def is_complete(self) -> bool:
        """Whether every outcome is here and none was collected yet."""
        return self._done.qsize() == len(self.steps)

    def _land(self, position: int, began: float, result: Future[Any]) -> None:
        self._done.put(
            (position, Outcome(result.result(), seconds=perf_counter() - began, began=began))
        )
        if self._go_on is not None and self.is_complete:
            # This is the thread of another question's leader, which must not do this question's
            # work.
            with suppress(ModelError):
                self._performer.bulkhead.start(self._work)

    def launch(self, count: int, *, has_thread: bool = False) -> None:
        """Let *count* further threads work at the steps, as far as there are any; without one all steps fail.

        If the batch *has_thread* already, the calling one, that is among the *count*.
        """
        self.has_begun = self.has_begun or has_thread
        for _ in range(min(count, len(self._waiting)) - has_thread):
            try:
                self._performer.bulkhead.start(self._work)
            except ModelError as error:
                while self._waiting and not self.has_begun:
                    self._done.put((self._waiting.popleft(), Outcome(error=error)))
                return
            self.has_begun = True

    def _work(self) -> None:
        """Perform steps, of this batch and of the ones that this thread goes on with."""
        batch: _Batch | None = self
        while batch is not None:
            batch.perform_steps()
            batch = batch._go_on(batch) if batch._go_on is not None and batch.is_complete else None

    def perform_steps(self) -> None:
        """Perform one step after the other, each as soon as this thread is free."""
        while not (self._is_over or self.deadline.passed):
            try:
                position = self._waiting.popleft()
            except IndexError:
                return
            # Each step sees what the caller has set, and nothing of what another step sets. In a
            # thread of ours nobody else would hear of an interrupt or exit.
            self._running[position] = perf_counter()
            outcome = self._context.copy().run(
                _attempt, self.steps[position], self._performer, BaseException
            )
            self._running.pop(position, None)
            self._done.put((position, outcome))
            # The traceback of an error holds this frame, which must not hold the error.
            del outcome

    def wait(self) -> list[Outcome]:
        """Collect what the threads bring until all is there or the deadline has passed; what is missing is late."""
        while self._open:
            left = self.deadline.remaining()
            try:
                position, outcome = self._done.get(timeout=None if left == NEVER else left)
            except queue.Empty:
                break
            self._outcomes[position] = outcome
            self._open -= 1
        return self.give_up("late")

    def give_up(self, ending: Ending) -> list[Outcome]:
        """Let go of everything that has not come back, as what is *ending* so; returns what came of each step."""
        if self._is_over:
            return []
        self._is_over = True
        running, now = self._running.copy(), perf_counter()
        self._performer.bulkhead.give_up(len(running))
        for position, step in enumerate(self.steps):
            if self._outcomes[position] is None:
                began = running.get(position, now)
                self._outcomes[position] = Outcome(late=True, seconds=now - began, began=began)
                step.observation.end(ending)
                if isinstance(step, Ask):
                    step.deadline.cancel()
        outcomes, self._outcomes = self._outcomes, [None] * len(self.steps)
        return [outcome for outcome in outcomes if outcome is not None]


def _perform_together(together: Together, performer: Performer, context: Context) -> list[Outcome]:
    batch = _Batch(together, performer, context)
    try:
        batch.launch(together.limit)
        return batch.wait()
    finally:
        batch.give_up("cancelled")


class _Branch:
    """A flow that goes on beside the caller's own search.

    While the caller is inside that search, the thread that brings the last outcome of a batch takes
    the flow on to its next batch. Once the caller is back, the caller does. So no thread only waits
    for others.
    """

    def __init__(self, beside: Beside, performer: Performer, context: Context) -> None:
        self._flow = beside.flow
        self._performer = performer
        self._context = context
        # The caller's search has one of the places.
        self._places = beside.limit - 1
        # Re-entrant: in a process that is ending, a step is performed where its thread should have
        # begun.
        self._lock = threading.RLock()
        self._step: Step | None = None
        self._batch: _Batch | None = None
        self._outcome: Outcome | None = None
        self._has_caller = False

    def start(self) -> None:
        """Begin the flow, as far as its first batch."""
        with self._lock:
            self._advance(None)

    def finish(self, search: Outcome) -> list[Outcome]:
        """Return what came of the caller's *search* and of the flow, which is taken to its end unless that failed."""
        if search.error is not None:
            return [search, Outcome(late=True)]
        with self._lock:
            self._has_caller = True
            self._places += 1
        if self._batch is not None:
            self._batch.launch(1)
        while self._outcome is None and self._batch is not None:
            self._advance(self._batch.wait())
        return [search, self._outcome or Outcome(late=True)]

    def close(self) -> None:
        """Give up what is under way, and the flow."""
        with self._lock:
            self._has_caller = True
            batch, self._batch = self._batch, None
            if batch is not None:
                batch.give_up("cancelled")
            self._flow.close()

    def _go_on(self, batch: _Batch) -> _Batch | None:
        """Go on after *batch*, whose outcomes are all here, unless the caller does; returns what to work at next."""
        with self._lock:
            if batch is not self._batch or self._has_caller or self._places < 1:
                return None
            self._advance(batch.wait(), has_thread=True)
            return self._batch

    def _advance(self, outcomes: list[Outcome] | None, *, has_thread: bool = False) -> None:
        """Send *outcomes* to the flow and launch the batch that it asks for next, which may have this thread."""
        while True:
            self._batch = None
            try:
                # In a context of its own: what the flow sets there must not stay in the caller's.
                self._step = step = self._context.run(resume, self._flow, self._step, outcomes)
            except StopIteration as stop:
                self._outcome = Outcome(stop.value)
                return
            except Exception as error:
                self._outcome = Outcome(error=error)
                return
            together = (
                step if isinstance(step, Together) else Together(leaves_of(step), Deadline(), 1)
            )
            batch = _Batch(together, self._performer, self._context, self._go_on)
            batch.launch(min(self._places, together.limit), has_thread=has_thread)
            self._batch = batch
            if batch.has_begun or not batch.is_complete:
                # A thread that has begun comes back here by itself.
                return
            outcomes = batch.wait()


def _perform_beside(beside: Beside, performer: Performer, context: Context) -> list[Outcome]:
    # A copy, as the flow's own code runs in it, at times in several threads one after the other.
    branch = _Branch(beside, performer, context.copy())
    try:
        branch.start()
        # Not held here: the traceback of an error holds this frame.
        return branch.finish(_attempt(beside.search, performer))
    finally:
        branch.close()


def run(flow: Flow[T], performer: Performer) -> T:
    """Perform *flow* to its end, blocking."""
    # As it is before the original's own search, which runs in the caller's, can set anything in it.
    context = context_within(performer.bulkhead)
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(_perform_together(step, performer, context))
                continue
            if isinstance(step, Beside):
                step = flow.send(_perform_beside(step, performer, context))
                continue
            try:
                answer = _perform(step, performer)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        flow.close()
