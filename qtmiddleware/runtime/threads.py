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
Tasks = queue.SimpleQueue[Callable[[], None]]

MAX_THREADS: Final = 256
IDLE_SECONDS: Final = 10.0

logger: Final = get_logger("qtmiddleware")


class Overloaded(ModelError):
    """Raised if all threads of a middleware are busy. Its message quotes no query or passage."""


class Bulkhead:
    """A pool of at most *limit* daemon threads. An idle thread ends after 10 seconds.

    If no thread is free, a call is rejected at once, because it could wait forever behind calls
    that hang. With `sys.maxsize`, no call is ever rejected. Source: Nygard, Release It!, 2007.

    Attributes:
        refused: How many calls were rejected.
        in_use: How many threads are in use now.
        given_up: How many calls were abandoned because they were late.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self.limit = limit
        self.refused = 0
        self.given_up = 0
        self._sampler = LogSampler()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget all threads after a fork, because they belong to the parent process."""
        self._lock = threading.Lock()
        self.in_use = 0
        # One queue per idle thread, which waits there for its next task.
        self._idle: list[Tasks] = []

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread. Raise `ModelError` ``overloaded`` if no thread is free."""
        with self._lock:
            is_full = self.in_use >= self.limit
            if not is_full:
                self.in_use += 1
                if self._idle and not sys.is_finalizing():
                    # Under the lock, so that Ctrl-C leaves no thread that waits for ever.
                    self._idle.pop().put(task)
                    return
        if is_full:
            raise self._record_refusal()
        if self._start_thread(task):
            return
        with self._lock:
            self.in_use -= 1
        is_ending = sys.is_finalizing() or not threading.main_thread().is_alive()
        if is_ending or self.limit == sys.maxsize:
            # An original search must be answered, and at the end of the process nobody else runs.
            task()
        else:
            # Not performed here, because this may be the thread of an event loop.
            raise self._record_refusal()

    def _start_thread(self, task: Callable[[], None]) -> bool:
        """Start *task* in a new thread; return whether the system had one left."""
        # While the interpreter ends, a thread may start but never run.
        if sys.is_finalizing():
            return False
        # In a queue, because a thread keeps its arguments as long as it lives.
        tasks: Tasks = queue.SimpleQueue()
        tasks.put(task)
        thread = threading.Thread(
            target=self._perform_tasks, args=(tasks,), name="qtmiddleware", daemon=True
        )
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

    def record_abandoned_calls(self, call_count: int) -> None:
        """Count calls that are still running although no caller waits for them any more."""
        if call_count:
            with self._lock:
                self.given_up += call_count

    def _perform_tasks(self, tasks: Tasks) -> None:
        while True:
            try:
                task = tasks.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if tasks in self._idle:
                        self._idle.remove(tasks)
                        return
                    if tasks.empty():
                        # Ctrl-C came while a task was put here.
                        self.in_use -= 1
                        return
                continue
            # A task handles its own errors; an error that escapes must not end the pool's thread.
            with suppress(BaseException):
                task()
            del task  # An idle thread keeps nothing alive.
            with self._lock:
                self.in_use -= 1
                self._idle.append(tasks)

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
    bulkhead = current_bulkhead.get()
    future: Future[tuple[Any, BaseException | None]] = Future()
    bulkhead.start(partial(copy_context().run, _settle, future, call))
    try:
        result, error = await asyncio.wrap_future(future)
    finally:
        # If the caller was cancelled, the call runs on in its thread.
        bulkhead.record_abandoned_calls(future.running())
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
