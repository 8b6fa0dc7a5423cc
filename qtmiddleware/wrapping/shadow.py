"""Run shadow mode: try qtmiddleware in the background, and give callers the plain result.

For a fraction of the calls, qtmiddleware retrieves again after the caller has the plain result. It
logs the differences between the two results. It writes both results to the query log, which
``qtm shadow report`` reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from random import SystemRandom
from typing import Final

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.drivers import Bulkhead, Performer, arun, run
from qtmiddleware.runtime.forking import make_lock, register_fork_reset
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.runtime.steps import Flow
from qtmiddleware.types import Retrieval

MOST_AT_ONCE: Final = 4
"""The largest number of shadow retrievals at once per middleware. Further ones are dropped."""

Finish = Callable[[Retrieval], object]

logger: Final = get_logger("qtmiddleware")

# Not the generator of the `random` module: a forked process would draw the same numbers as its
# parent, and a user who seeds that generator expects their own sequence.
_random: Final = SystemRandom()


def should_start_shadow_retrieval(probability: float) -> bool:
    """Decide at random whether to start a shadow retrieval for a call.

    Returns ``True`` with the given *probability*, from 0 to 1.
    """
    return _random.random() < probability


class ShadowRuns:
    """Runs the shadow retrievals of one middleware, at most `MOST_AT_ONCE` at a time.

    The class is thread-safe.

    Attributes:
        running: the number of retrievals under way.
        finished: the number of retrievals that finished since the middleware was created.
        failed: the number of retrievals that raised an exception.
        dropped: the number of retrievals that did not start, because `MOST_AT_ONCE` were under way
            or no thread was free.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self.finished = self.failed = self.dropped = 0
        self._reported_dropped = 0
        # Keep a reference to each task: asyncio may collect a task that nobody references.
        self._tasks: set[asyncio.Task[None]] = set()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """After a fork, forget the retrievals under way, which belong to the parent process."""
        self.running = 0
        self._tasks.clear()

    def start_in_thread(
        self, flow: Flow[Retrieval], performer: Performer, on_finish: Finish, bulkhead: Bulkhead
    ) -> None:
        """Start *flow* in a thread of *bulkhead*. The thread calls *on_finish* with the result.

        Never raises. Drops *flow* if too many retrievals are under way or no thread is free.
        """
        if self._reserve_slot():
            try:
                bulkhead.start(
                    partial(copy_context().run, self._run_flow, flow, performer, on_finish)
                )
            except ModelError:
                self._release_slot("dropped")

    def start_in_event_loop(
        self, flow: Flow[Retrieval], performer: Performer, on_finish: Finish
    ) -> None:
        """Start *flow* as a task in the running event loop.

        The task calls *on_finish* with the result. Never raises. Drops *flow* if too many
        retrievals are under way.
        """
        # In this loop, because the clients of an asynchronous function belong to it.
        if self._reserve_slot():
            task = asyncio.get_running_loop().create_task(
                self._arun_flow(flow, performer, on_finish)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def count_newly_dropped_retrievals(self) -> int:
        """Return how many retrievals were dropped since the last call of this method."""
        with self._lock:
            newly, self._reported_dropped = self.dropped - self._reported_dropped, self.dropped
        return newly

    def _reserve_slot(self) -> bool:
        with self._lock:
            has_room = self.running < MOST_AT_ONCE
            self.running += has_room
            self.dropped += not has_room
        return has_room

    def _release_slot(self, outcome: str) -> None:
        with self._lock:
            self.running -= 1
            setattr(self, outcome, getattr(self, outcome) + 1)

    def _run_flow(self, flow: Flow[Retrieval], performer: Performer, on_finish: Finish) -> None:
        outcome = "failed"
        try:
            on_finish(run(flow, performer))
            outcome = "finished"
        except Exception as error:
            _log_shadow_failure(error)
        finally:
            self._release_slot(outcome)

    async def _arun_flow(
        self, flow: Flow[Retrieval], performer: Performer, on_finish: Finish
    ) -> None:
        outcome = "failed"
        try:
            on_finish(await arun(flow, performer))
            outcome = "finished"
        except Exception as error:
            _log_shadow_failure(error)
        finally:
            self._release_slot(outcome)


def _log_shadow_failure(error: Exception) -> None:
    name = type(error).__name__
    logger.info("a shadow retrieval failed: %s", name, event="shadow_failed", error=name)
    logger.debug(
        "a shadow retrieval failed: %s", format_error(error), event="shadow_failed", error=name
    )
