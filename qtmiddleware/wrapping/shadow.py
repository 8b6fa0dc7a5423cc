"""Shadow mode: callers get what the plain function returns, and a share of the calls is retrieved by us afterwards.

What would have changed is logged, and written to the query log for ``qtm shadow report``. Nobody
waits for it.
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
from qtmiddleware.runtime.forking import ForkLock, renew_after_fork
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.runtime.steps import Flow
from qtmiddleware.types import Retrieval

MOST_AT_ONCE: Final = 4
"""How many retrievals in the shadow one middleware makes at a time; what comes while these run is dropped."""

Finish = Callable[[Retrieval], object]

logger: Final = get_logger("qtmiddleware")

# Not the module's own generator: a fork would draw what its parent draws, and a user's seed is
# theirs.
_random: Final = SystemRandom()


def is_drawn(share: float) -> bool:
    """Whether a call is one of the *share*, 0 to 1, that is retrieved in the shadow."""
    return _random.random() < share


class ShadowRuns:
    """The retrievals of one middleware that nobody waits for, at most `MOST_AT_ONCE` at a time; thread-safe.

    *finished*, *failed* (the function raised something) and *dropped* are counted since the
    middleware was made,
    *running* are under way.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.finished = self.failed = self.dropped = 0
        self._told = 0
        # Tasks that nobody holds may be collected while they run.
        self._tasks: set[asyncio.Task[None]] = set()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the runs under way: they are the parent's."""
        self.running = 0
        self._tasks.clear()

    def start(
        self, flow: Flow[Retrieval], performer: Performer, finish: Finish, bulkhead: Bulkhead
    ) -> None:
        """Perform *flow* in a thread of *bulkhead*, and *finish* with what comes of it; raises nothing."""
        if self._enter():
            try:
                bulkhead.start(partial(copy_context().run, self._perform, flow, performer, finish))
            except ModelError:
                self._leave("dropped")

    def start_task(self, flow: Flow[Retrieval], performer: Performer, finish: Finish) -> None:
        """`start` in a task of the running loop, where an asynchronous function's clients are."""
        if self._enter():
            task = asyncio.get_running_loop().create_task(self._aperform(flow, performer, finish))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def count_newly_dropped(self) -> int:
        """How many were dropped since this was last asked."""
        with self._lock.free:
            newly, self._told = self.dropped - self._told, self.dropped
        return newly

    def _enter(self) -> bool:
        with self._lock.free:
            has_room = self.running < MOST_AT_ONCE
            self.running += has_room
            self.dropped += not has_room
        return has_room

    def _leave(self, how: str) -> None:
        with self._lock.free:
            self.running -= 1
            setattr(self, how, getattr(self, how) + 1)

    def _perform(self, flow: Flow[Retrieval], performer: Performer, finish: Finish) -> None:
        how = "failed"
        try:
            finish(run(flow, performer))
            how = "finished"
        except Exception as error:
            _log_failure(error)
        finally:
            self._leave(how)

    async def _aperform(self, flow: Flow[Retrieval], performer: Performer, finish: Finish) -> None:
        how = "failed"
        try:
            finish(await arun(flow, performer))
            how = "finished"
        except Exception as error:
            _log_failure(error)
        finally:
            self._leave(how)


def _log_failure(error: Exception) -> None:
    name = type(error).__name__
    logger.info("a shadow retrieval failed: %s", name, event="shadow_failed", error=name)
    logger.debug(
        "a shadow retrieval failed: %s", format_error(error), event="shadow_failed", error=name
    )
