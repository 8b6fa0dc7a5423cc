"""Run calls in daemon threads, and limit how many threads one middleware uses.

A running thread cannot be stopped: at the deadline the caller only stops waiting for it. The
threads are daemons, so that a call that hangs does not keep the process from ending, as the threads
of `ThreadPoolExecutor` and of `anyio.to_thread` do.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.logs import LogSampler, get_logger

T = TypeVar("T")

MAX_THREADS: Final = 256
IDLE_SECONDS: Final = 10.0

logger: Final = get_logger("qtmiddleware")


class Overloaded(ModelError):
    """Raised if all threads of a middleware are busy. Its message quotes no query or passage."""


class Bulkhead:
    """A pool of at most *limit* daemon threads. An idle thread ends after 10 seconds.

    If no thread is free, a call is rejected at once, because it could wait forever behind calls
    that hang. Source: Nygard, Release It!, 2007.

    Attributes:
        refused: How many calls were rejected.
        in_use: How many threads are in use now.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self.limit = limit
        self.refused = 0
        self._sampler = LogSampler()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget all threads after a fork, because they belong to the parent process."""
        self._lock = threading.Lock()
        self.in_use = 0
        # How many threads wait for a task that nobody has put into the queue yet.
        self._idle = 0
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread. Raise `ModelError` ``overloaded`` if no thread is free."""
        is_ending = sys.is_finalizing()
        with self._lock:
            is_full = self.in_use >= self.limit
            if not is_full:
                self.in_use += 1
            if self._idle and not is_full and not is_ending:
                # Under the lock, so that Ctrl-C leaves no thread that waits for ever.
                self._idle -= 1
                self._tasks.put(task)
                return
        if is_full:
            raise self._record_refusal()
        # While the interpreter ends, a thread may start but never run.
        if not is_ending and self._start_thread():
            self._tasks.put(task)
            return
        with self._lock:
            self.in_use -= 1
        if is_ending or not threading.main_thread().is_alive() or self.limit == sys.maxsize:
            # An original search must be answered, and at the end of the process nobody else runs.
            task()
        else:
            # Not performed here, because this may be the thread of an event loop.
            raise self._record_refusal()

    def _start_thread(self) -> bool:
        """Start a thread that waits for a task; return whether the system had one left."""
        thread = threading.Thread(target=self._perform_tasks, name="qtmiddleware", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        except BaseException:
            # Ctrl-C may come before the thread is started; afterwards the thread counts itself.
            if thread.ident is None:
                with self._lock:
                    self.in_use -= 1
            raise
        return True

    def _perform_tasks(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if not self._tasks.empty():
                        continue
                    if self._idle:
                        self._idle -= 1
                    else:
                        # Ctrl-C came between the start of this thread and its first task.
                        self.in_use -= 1
                    return
            # A task handles its own errors; an error that escapes must not end the pool's thread.
            with suppress(BaseException):
                task()
            del task  # An idle thread keeps nothing alive.
            with self._lock:
                self.in_use -= 1
                self._idle += 1

    def _record_refusal(self) -> ModelError:
        with self._lock:
            self.refused += 1
        busy = f"all {self.limit} threads of the middleware are busy"
        self._sampler.log(
            logger,
            "threads taken",
            [busy],
            message="only original searches run until a thread is free",
            limit=self.limit,
        )
        return Overloaded("overloaded", busy)


UNLIMITED: Final = Bulkhead(sys.maxsize)
"""The threads for original searches, and for work that waits for other threads."""

current_bulkhead: Final[ContextVar[Bulkhead]] = ContextVar(
    "current_bulkhead",
    default=UNLIMITED,
)
"""The threads for the blocking calls of the running code: a middleware's own in its work."""


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run *call* in a thread of the `current_bulkhead` and await its result."""
    future: Future[tuple[Any, BaseException | None]] = Future()
    current_bulkhead.get().start(partial(copy_context().run, _settle, future, call))
    # If the caller is cancelled, the call runs on in its thread.
    result, error = await asyncio.wrap_future(future)
    try:
        if error is not None:
            raise error
    finally:
        # Breaks a reference cycle: the error's traceback refers to this frame.
        del error, future
    return result  # type: ignore[no-any-return]


def _settle(future: Future[tuple[Any, BaseException | None]], call: Callable[[], Any]) -> None:
    """Make *call* for *future*, unless nobody waits for the result any more."""
    if future.set_running_or_notify_cancel():
        try:
            result = call(), None
        except BaseException as error:
            # As a result, because a future replaces some errors by others.
            future.set_result((None, error))
        else:
            future.set_result(result)
        del future
