"""The driver that blocks.

The original's own search is performed in the caller's thread, everything beside it in daemon threads of the
middleware's bulkhead.
"""

from __future__ import annotations

import queue
from collections import deque
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.observing import Ending, tell
from qtmiddleware.runtime.steps import (
    Ask,
    Embed,
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
from qtmiddleware.runtime.threads import context_within
from qtmiddleware.types import NEVER


def _perform(step: Leaf, world: World) -> Any:
    """Perform one step in this thread; returns its answer."""
    with step.observation as observation:
        return observation.keep(_call(step, world))


def _call(step: Leaf, world: World) -> Any:
    if isinstance(step, Search):
        return world.search(step)
    if isinstance(step, Embed):
        return world.embed(step.texts)
    if isinstance(step, Rerank):
        return world.rerank(step)
    if isinstance(step, Recall):
        return step.call()
    if isinstance(step, Tell):
        return tell(step.hook, step.retrieval)
    if isinstance(step, Join):
        raise TypeError("a flight is joined within Together, where nobody waits for it for ever")
    return model_of(step, world).complete(step.prompt, step.deadline)


def _attempt(step: Leaf, world: World, caught: type[BaseException] = Exception) -> Outcome:
    began = perf_counter()
    try:
        value = _perform(step, world)
    except caught as error:
        return Outcome(error=error, seconds=perf_counter() - began)
    return Outcome(value, seconds=perf_counter() - began)


class _Batch:
    """Steps performed by threads for one waiting caller."""

    def __init__(self, together: Together, world: World, context: Context) -> None:
        self.steps = together.steps
        self.deadline = together.deadline
        self.outcomes: list[Outcome | None] = [None] * len(together.steps)
        self._world = world
        self._context = context
        self._done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._open = len(together.steps) - together.essential
        self._is_over = False
        self._has_begun = False
        self._running: set[int] = set()
        self._waiting: deque[int] = deque()
        for position in range(together.essential, len(together.steps)):
            step = together.steps[position]
            if isinstance(step, Join):
                # No thread is needed to wait for what another one does.
                step.flight.result.add_done_callback(partial(self._land, position))
            else:
                self._waiting.append(position)

    def _land(self, position: int, result: Future[Any]) -> None:
        self._done.put((position, Outcome(result.result())))

    def launch(self, count: int) -> None:
        """Let *count* further threads work at the steps, as far as there are any; without one all steps fail."""
        for _ in range(min(count, len(self._waiting))):
            try:
                self._world.bulkhead.start(self._work)
            except ModelError as error:
                while self._waiting and not self._has_begun:
                    self._done.put((self._waiting.popleft(), Outcome(error=error)))
                return
            self._has_begun = True

    def _work(self) -> None:
        """Perform one step after the other, each as soon as this thread is free."""
        while not (self._is_over or self.deadline.passed):
            try:
                position = self._waiting.popleft()
            except IndexError:
                return
            # Each step sees what the caller has set, and nothing of what another step sets. In a thread of ours nobody
            # else would hear of an interrupt or exit.
            self._running.add(position)
            outcome = self._context.copy().run(_attempt, self.steps[position], self._world, BaseException)
            self._running.discard(position)
            self._done.put((position, outcome))

    def perform_here(self, position: int) -> None:
        """Perform one step in the caller's own thread."""
        self.outcomes[position] = _attempt(self.steps[position], self._world)

    def wait(self) -> None:
        """Collect what the threads bring until all is there or the deadline has passed."""
        while self._open:
            left = self.deadline.remaining()
            try:
                position, outcome = self._done.get(timeout=None if left == NEVER else left)
            except queue.Empty:
                return
            self.outcomes[position] = outcome
            self._open -= 1

    def give_up(self, ending: Ending) -> None:
        """Let go of everything that has not come back, as what is *ending* so."""
        self._is_over = True
        self._world.bulkhead.give_up(len(self._running))
        for step, outcome in zip(self.steps, self.outcomes, strict=True):
            if outcome is None:
                step.observation.end(ending)
                if isinstance(step, Ask):
                    step.deadline.cancel()


def _perform_together(together: Together, world: World, context: Context) -> list[Outcome]:
    batch = _Batch(together, world, context)
    ending: Ending = "cancelled"
    try:
        batch.launch(together.limit - 1 if together.essential else together.limit)
        for position in range(together.essential):
            batch.perform_here(position)
        if all(outcome is None or outcome.error is None for outcome in batch.outcomes[: together.essential]):
            batch.launch(1 if together.essential else 0)
            batch.wait()
            ending = "late"
    finally:
        batch.give_up(ending)
    return [outcome or Outcome(late=True) for outcome in batch.outcomes]


def run(flow: Flow[T], world: World) -> T:
    """Perform *flow* to its end, blocking."""
    # As it is before the original's own search, which runs in the caller's, can set anything in it.
    context = context_within(world.bulkhead)
    try:
        step = next(flow)
        while True:
            if isinstance(step, Together):
                step = flow.send(_perform_together(step, world, context))
                continue
            try:
                answer = _perform(step, world)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        flow.close()
