"""Run shadow mode: retrieve again in the background for a fraction of the calls.

Callers get the plain result. The differences are logged, and both results are written to the query
log, which ``qtm shadow`` reads.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.retrieval.flow import retrieve
from qtmiddleware.runtime.concurrency import drive
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.services import arun, run
from qtmiddleware.types import Retrieval

if TYPE_CHECKING:
    from qtmiddleware.wrapping.calling import Caller

MOST_AT_ONCE: Final = 4
"""The largest number of shadow retrievals at once per middleware. Further ones are dropped."""

logger: Final = get_logger("qtmiddleware")

# Not the generator of the `random` module: a forked process would draw the same numbers as its
# parent, and a user who seeds that generator expects their own sequence.
_random: Final = SystemRandom()


def should_start_shadow_retrieval(share: float | None) -> bool:
    """Return ``True`` with the probability *share*, from 0 to 1; ``False`` if there is none."""
    return share is not None and _random.random() < share


class ShadowRuns:
    """Runs the shadow retrievals of one middleware, at most `MOST_AT_ONCE` at a time.

    Thread-safe. *running*, *finished*, *failed* and *dropped* count them; those are dropped that
    find no room or no free thread.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self.running = self.finished = self.failed = self.dropped = self._logged_drops = 0
        # Keep a reference to each task: asyncio may collect a task that nobody references.
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, caller: Caller, plain: Retrieval) -> None:
        """Retrieve in the background, and log how the result differs from *plain*. Never raises.

        An asynchronous function is called in the running event loop, to which its clients belong.
        """
        with self._lock:
            has_room = self.running < MOST_AT_ONCE
            self.running += 1
        if not has_room:
            self._end("dropped")
        elif caller.function.is_async:
            task = asyncio.get_running_loop().create_task(self._retrieve(caller, plain))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            context = copy_context()
            try:
                caller.bulkhead.start(lambda: context.run(drive, self._retrieve(caller, plain)))
            except ModelError:
                self._end("dropped")

    def _end(self, outcome: str) -> None:
        with self._lock:
            self.running -= 1
            setattr(self, outcome, getattr(self, outcome) + 1)

    async def _retrieve(self, caller: Caller, plain: Retrieval) -> None:
        flow, outcome = partial(retrieve, caller.call), "failed"
        try:
            is_async = caller.function.is_async
            work = flow, caller.bulkhead, caller.search
            retrieval = await arun(*work) if is_async else run(*work)
            self._log(caller, plain, retrieval)
            outcome = "finished"
        except Exception as error:
            name = type(error).__name__
            logger.info("a shadow retrieval failed: %s", name, event="shadow_failed", error=name)
        finally:
            self._end(outcome)

    def _log(self, caller: Caller, plain: Retrieval, retrieval: Retrieval) -> None:
        caller.warn_about_setup_once(retrieval)
        query_id, passages = retrieval.trace.query_id, len(retrieval.matches)
        kept = count_kept_passages(plain, retrieval)
        logger.info(
            "shadow of %s: %d of %d passages as in the plain result",
            query_id,
            kept,
            passages,
            event="shadow",
            query_id=query_id,
            passages=passages,
            kept=kept,
        )
        if (log := caller.engine.log) is not None:
            with self._lock:
                dropped = self.dropped - self._logged_drops
                self._logged_drops = self.dropped
            log.append_record(retrieval, plain, dropped)


def count_kept_passages(plain: Retrieval, retrieval: Retrieval) -> int:
    """Return the number of passages that are in both *plain* and *retrieval*."""
    return len({match.key for match in plain.matches} & {match.key for match in retrieval.matches})
