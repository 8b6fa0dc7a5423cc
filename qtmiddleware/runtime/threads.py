"""Run calls in daemon threads, and limit how many threads one middleware uses.

A running thread cannot be stopped: at the deadline the caller only stops waiting for it. The
threads are daemons, so that a call that hangs does not keep the process from ending. As a test, a
process started a call that sleeps for 8 s and then ended: with `ThreadPoolExecutor` after 8.1 s,
with `anyio.to_thread` after 8.3 s, and with these threads at once.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.logs import get_logger

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
    that hang. A warning is logged at the first rejected call, and when half of the threads are free
    again. Thread-safe; a forked process begins without threads. Source: Nygard, Release It!, 2007.

    Attributes:
        limit: The maximum number of threads in use. With `sys.maxsize`, no call is ever rejected.
        refused: How many calls were rejected.
        in_use: How many threads are in use now.
        given_up: How many calls were abandoned because they were late.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self.limit = limit
        self.refused = 0
        self.given_up = 0
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget all threads after a fork, because they belong to the parent process."""
        self._lock = threading.Lock()
        self.in_use = 0
        self._is_full = False
        # One queue per idle thread, which waits there for its next task.
        self._idle: list[Tasks] = []

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread. Raise `ModelError` ``overloaded`` if no thread is free."""
        tasks: Tasks | None = None
        with self._lock:
            has_room = self.in_use < self.limit
            self.in_use += has_room
            if has_room and self._idle:
                tasks = self._idle.pop()
        if not has_room:
            raise self._record_refusal()
        try:
            if tasks is None or sys.is_finalizing():
                tasks = self._start_thread()
        except RuntimeError:
            is_ending = sys.is_finalizing() or not threading.main_thread().is_alive()
            if self.limit < sys.maxsize and not is_ending:
                # The task is not performed here, because this may be the thread of an event loop.
                self._release_thread()
                raise self._record_refusal() from None
            try:
                task()
            finally:
                self._release_thread()
        else:
            # Not an argument of the thread, which keeps its arguments as long as it lives.
            tasks.put(task)

    def record_abandoned_calls(self, call_count: int) -> None:
        """Count calls that are still running although no caller waits for them any more."""
        if call_count:
            with self._lock:
                self.given_up += call_count

    def _start_thread(self) -> Tasks:
        """Start a thread, and return the queue of its tasks; raise `RuntimeError` if none starts.

        While the interpreter ends, a thread may start but never run.
        """
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is ending")
        tasks: Tasks = queue.SimpleQueue()
        threading.Thread(
            target=self._perform_tasks, args=(tasks,), name="qtmiddleware", daemon=True
        ).start()
        return tasks

    def _perform_tasks(self, tasks: Tasks) -> None:
        while True:
            try:
                task = tasks.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if tasks in self._idle:
                        self._idle.remove(tasks)
                        return
                # A caller has just taken the queue, so a task is about to arrive.
                continue
            # A task handles its own errors; an error that escapes must not end the pool's thread.
            with suppress(BaseException):
                task()
            del task  # An idle thread keeps nothing alive.
            self._release_thread(tasks)

    def _record_refusal(self) -> ModelError:
        with self._lock:
            self.refused += 1
            begins, self._is_full = not self._is_full, True
            in_use = self.in_use
        if begins:
            logger.warning(
                "all threads of a middleware are busy (%d in use, the limit is %d): "
                "only original searches run until a thread is free",
                in_use,
                self.limit,
                event="threads_taken",
                in_use=in_use,
                limit=self.limit,
            )
        return Overloaded("overloaded", f"all {self.limit} threads of the middleware are busy")

    def _release_thread(self, tasks: Tasks | None = None) -> None:
        """Count one thread less in use. It is idle if it waits for *tasks*."""
        with self._lock:
            self.in_use -= 1
            if tasks is not None:
                self._idle.append(tasks)
            ends = self._is_full and self.in_use <= self.limit // 2
            if ends:
                self._is_full = False
        if ends:
            logger.warning(
                "threads of the middleware are free again; %d calls have been skipped so far",
                self.refused,
                event="threads_free",
                refused=self.refused,
            )


UNLIMITED: Final = Bulkhead(sys.maxsize)
"""The threads for original searches, and for work that waits for other threads."""

current_bulkhead: Final[ContextVar[Bulkhead]] = ContextVar("current_bulkhead", default=UNLIMITED)
"""The threads for the blocking calls of the running code: a middleware's own in its work."""


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run *call* in a thread of the `current_bulkhead` and await its result.

    The event loop's default pool is not used, because it is small and belongs to the application.

    Raises:
        ModelError: ``overloaded`` if no thread is free.
        BaseException: The exception that *call* raises.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    bulkhead, context, is_running = current_bulkhead.get(), copy_context(), False

    def run_call() -> None:
        nonlocal is_running
        if future.done():  # Nobody waits for the result any more.
            return
        is_running = True
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, context.run(call))
        except StopIteration as error:
            # A future does not accept a StopIteration, and neither does a coroutine.
            failure = RuntimeError("the function raised StopIteration")
            failure.__cause__ = error
            settle = partial(future.set_exception, failure)
            del failure
        except BaseException as error:
            settle = partial(future.set_exception, error)
        is_running = False
        # If the loop was closed in the meantime, nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, future, settle)
        del settle  # Breaks a reference cycle: the error's traceback refers to this frame.

    bulkhead.start(run_call)
    try:
        return await future
    finally:
        # If the caller was cancelled, the call runs on in its thread.
        bulkhead.record_abandoned_calls(is_running)


def _settle(future: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    if not future.done():
        settle()
