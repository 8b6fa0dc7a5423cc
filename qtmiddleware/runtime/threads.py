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
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.logs import get_logger

T = TypeVar("T")

MAX_THREADS: Final = 256
IDLE_SECONDS: Final = 10.0

logger: Final = get_logger("qtmiddleware")


class Overloaded(ModelError):
    """Raised if all threads of a middleware are busy. Its message quotes no query or passage."""


def _is_interpreter_ending() -> bool:
    """Return whether the interpreter is ending, so that no new thread can start."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


class ThreadPool:
    """A pool of daemon threads. It starts a new thread if none is idle, so that no task waits.

    An idle thread ends after 10 seconds.
    """

    def __init__(self) -> None:
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget the idle threads after a fork, because they belong to the parent process.

        gevent's greenlets survive a fork, but wait forever.
        """
        # One queue per idle thread, which waits there for its next task.
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread, without waiting for its end.

        If no thread can start, for example because the interpreter is ending, *task* runs in the
        calling thread.
        """
        if not self.try_start(task):
            task()

    def try_start(self, task: Callable[[], None]) -> bool:
        """Start *task* in a thread, without waiting for its end.

        Returns ``False`` if no thread could start. *task* does not run then.
        """
        if sys.is_finalizing():
            # A thread that starts now would never run.
            return False
        with suppress(IndexError):
            self._idle.pop().put(task)
            return True
        tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # The task is not passed as an argument: a thread keeps its arguments as long as it lives,
        # with everything that the first task refers to.
        tasks.put(task)
        try:
            threading.Thread(
                target=self._perform_tasks, args=(tasks,), name="qtmiddleware", daemon=True
            ).start()
        except RuntimeError:
            return False
        return True

    def _perform_tasks(self, tasks: queue.SimpleQueue[Callable[[], None]]) -> None:
        task = tasks.get()
        while True:
            # A task handles its own errors; an error that escapes must not end the pool's thread.
            with suppress(BaseException):
                task()
            del task  # An idle thread keeps nothing alive.
            self._idle.append(tasks)
            try:
                task = tasks.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(tasks)
                except ValueError:
                    # Another thread has just taken this queue from the idle ones, so a task is
                    # about to arrive.
                    task = tasks.get()
                else:
                    return


_threads: Final = ThreadPool()


def start_thread(task: Callable[[], None]) -> None:
    """Start *task* in a daemon thread that no middleware's limit counts."""
    _threads.start(task)


class Bulkhead:
    """Limits one middleware to *limit* threads at a time.

    If no thread is free, a call is rejected at once, because it could wait forever behind calls
    that hang. A warning is logged at the first rejected call, and when half of the threads are free
    again. Thread-safe; a forked process begins with all threads free. Source: Nygard, Release It!,
    2007.

    Attributes:
        limit: The maximum number of threads in use.
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
        """Set the number of threads in use to 0 after a fork, because the parent has them."""
        self._lock = threading.Lock()
        self.in_use = 0
        self._is_full = False

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread. Raise `ModelError` ``overloaded`` if no thread is free."""
        with self._lock:
            has_room = self.in_use < self.limit
            self.in_use += has_room
        if not has_room:
            raise self._record_refusal()

        def perform_task() -> None:
            try:
                task()
            finally:
                self._release_thread()

        if _threads.try_start(perform_task):
            return
        if _is_interpreter_ending():
            perform_task()
            return
        # The system starts no more threads. The task is not performed here, because this may be the
        # thread of an event loop.
        self._release_thread()
        raise self._record_refusal()

    def record_abandoned_calls(self, call_count: int) -> None:
        """Count calls that are still running although no caller waits for them any more."""
        if call_count:
            with self._lock:
                self.given_up += call_count

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

    def _release_thread(self) -> None:
        with self._lock:
            self.in_use -= 1
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


_bulkhead: Final[ContextVar[Bulkhead | None]] = ContextVar("bulkhead", default=None)


def copy_context_with_bulkhead(bulkhead: Bulkhead) -> Context:
    """Return a copy of the caller's context, in which `run_in_thread` uses *bulkhead*.

    The caller's own context has no bulkhead then, so that the original search always gets a thread.
    """
    context = copy_context()
    context.run(_bulkhead.set, bulkhead)
    # Another middleware may have made this call, so its bulkhead may be set here.
    if _bulkhead.get() is not None:
        _bulkhead.set(None)
    return context


def get_current_bulkhead() -> Bulkhead | None:
    """Return the bulkhead of the current context.

    Returns ``None`` in an original search and outside of flows.
    """
    return _bulkhead.get()


def _settle_future(future: asyncio.Future[T], value: T | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


async def run_in_thread(call: Callable[[], T], bulkhead: Bulkhead | None = None) -> T:
    """Run *call* in a daemon thread and await its result.

    The event loop's default pool is not used, because it is small and belongs to the application.

    Args:
        call: A function without parameters.
        bulkhead: Provides the thread; by default the current context's bulkhead. In a context
            without a bulkhead, *call* always gets a thread.

    Raises:
        ModelError: ``overloaded`` if no thread is free.
        BaseException: The exception that *call* raises.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context: Context = copy_context()
    bulkhead, is_running = bulkhead or _bulkhead.get(), False

    def run_call() -> None:
        nonlocal is_running
        if future.done():  # Nobody waits for the result any more.
            return
        is_running = True
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = context.run(call)
        except StopIteration as error:
            # A future does not accept a StopIteration, and neither does a coroutine.
            failure = RuntimeError("the function raised StopIteration")
            failure.__cause__ = error
        except BaseException as error:
            failure = error
        is_running = False
        # If the loop was closed in the meantime, nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle_future, future, value, failure)
        del failure  # Breaks a reference cycle: its traceback refers to this frame.

    (_threads if bulkhead is None else bulkhead).start(run_call)
    try:
        return await future
    finally:
        # If the caller was cancelled, the call runs on in its thread.
        if bulkhead is not None:
            bulkhead.record_abandoned_calls(is_running)


def call_all(calls: Sequence[Callable[[], T]], bulkhead: Bulkhead, max_calls: int) -> list[T]:
    """Run *calls* at the same time and return their results, in the order of *calls*.

    If a call raises an exception, no other call begins and the exception is raised here. Running
    calls continue to their end.

    Args:
        calls: Functions without parameters.
        bulkhead: Provides threads in addition to the caller's own thread.
        max_calls: The maximum number of calls at once.
    """
    waiting = deque(enumerate(calls))
    done: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()

    def run_calls(context: Context) -> None:
        with suppress(IndexError):
            while True:
                position, call = waiting.popleft()
                try:
                    done.put((position, context.copy().run(call), None))
                except BaseException as error:
                    waiting.clear()
                    done.put((position, None, error))

    results: dict[int, Any] = {}
    try:
        # If no thread is free, the caller's thread performs all calls.
        with suppress(ModelError):
            for _ in range(min(max_calls, len(calls)) - 1):
                bulkhead.start(partial(run_calls, copy_context()))
        run_calls(copy_context())
        while len(results) < len(calls):
            position, value, error = done.get()
            if error is not None:
                raise error
            results[position] = value
    finally:
        waiting.clear()
    return [results[position] for position in range(len(calls))]


async def acall_all(
    calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], max_calls: int
) -> list[T]:
    """Await *calls* at the same time and return their results, in the order of *calls*.

    At most *max_calls* calls run at once. If a call raises an exception or the caller is cancelled,
    all other calls are cancelled and awaited.
    """
    room = asyncio.Semaphore(max_calls)

    async def perform(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with room:
            return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(perform(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
