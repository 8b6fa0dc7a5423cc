"""Daemon threads shared by all flows, and bulkheads that limit how many one middleware uses.

A thread that is running other code cannot be stopped; at the deadline the caller only stops
waiting for it. The threads are daemons because a call that hangs must not keep the interpreter
from ending. With a call that sleeps for 8 s, a process ends after 8.1 s on `ThreadPoolExecutor`,
after 8.3 s on `anyio.to_thread`, and at once with these threads.
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
from qtmiddleware.runtime.forking import renew_after_fork
from qtmiddleware.runtime.logs import get_logger

T = TypeVar("T")

MAX_THREADS: Final = 256
IDLE_SECONDS: Final = 10.0

logger: Final = get_logger("qtmiddleware")


class Overloaded(ModelError):
    """Raised if all threads of a middleware are in use. The message quotes no query or passage."""


def _is_ending() -> bool:
    """Return whether the interpreter is ending.

    Daemon threads are stopped at that time, and no new thread can start.
    """
    return sys.is_finalizing() or not threading.main_thread().is_alive()


class Threads:
    """A pool of daemon threads that starts a new thread if none is idle, so that no task waits.

    An idle thread ends after 10 seconds. The queue class is looked up each time a queue is made,
    because gevent may replace threads and queues after this module was loaded. A queue made before
    would block all greenlets.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, forget the idle threads, which belong to the parent process.

        (gevent's greenlets survive a fork, but wait forever.)
        """
        # One queue per idle thread, which waits there for its next task, or for `None` to end.
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread without waiting for its end.

        If no thread can start, for example because the interpreter is ending, *task* runs in the
        caller's thread.
        """
        if not self.take(task):
            task()

    def take(self, task: Callable[[], None]) -> bool:
        """Start *task* in a thread without waiting for its end.

        Returns whether a thread could start.
        """
        if sys.is_finalizing():
            # A thread that starts now would never run.
            return False
        with suppress(IndexError):
            while True:
                tasks = self._idle.pop()
                if type(tasks) is queue.SimpleQueue:
                    tasks.put(task)
                    return True
                # This queue was made before gevent replaced the class: let its thread end, and try
                # the next one.
                tasks.put(None)
        tasks = queue.SimpleQueue()
        # The task is not passed as an argument: a thread keeps its arguments as long as it lives,
        # with everything that the first task refers to.
        tasks.put(task)
        try:
            threading.Thread(
                target=self._work, args=(tasks,), name="qtmiddleware", daemon=True
            ).start()
        except RuntimeError:
            return False
        return True

    def _work(self, tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        task = tasks.get()
        while task is not None:
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


_threads: Final = Threads()


class Bulkhead:
    """Limits the work of one middleware to *limit* threads at a time.

    If no thread is free, a call is refused at once, because a queue behind hanging calls would
    never move. A warning is logged when refusals begin, and when half of the threads are free
    again. Thread-safe; a forked process begins with all threads free. Source: Nygard, Release It!,
    2007.

    Attributes:
        limit: The most threads.
        refused: How many calls were refused.
        in_use: How many threads are in use now.
        given_up: How many calls were left running because they were late.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self.limit = limit
        self.refused = 0
        self.given_up = 0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, forget the threads in use, which belong to the parent process."""
        self._lock = threading.Lock()
        self.in_use = 0
        self._is_full = False

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread; raise `ModelError` ``overloaded`` if no thread is free."""
        with self._lock:
            has_room = self.in_use < self.limit
            self.in_use += has_room
        if not has_room:
            raise self._make_refusal()

        def work() -> None:
            try:
                task()
            finally:
                self._release()

        if _threads.take(work):
            return
        if _is_ending():
            work()
            return
        # The system starts no more threads. The task is not performed here, because this may be the
        # thread of an event loop.
        self._release()
        raise self._make_refusal()

    def give_up(self, calls: int) -> None:
        """Add *calls* to the number of calls that run on although no caller waits for them."""
        if calls:
            with self._lock:
                self.given_up += calls

    def _make_refusal(self) -> ModelError:
        with self._lock:
            self.refused += 1
            begins, self._is_full = not self._is_full, True
            in_use = self.in_use
        if begins:
            logger.warning(
                "all threads of a middleware are busy (%d in use, limits.maxThreads is %d): "
                "only original searches run until a thread is free",
                in_use,
                self.limit,
                event="threads_taken",
                in_use=in_use,
                limit=self.limit,
            )
        return Overloaded("overloaded", f"all threads are busy; limits.maxThreads is {self.limit}")

    def _release(self) -> None:
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
    """Return a copy of the caller's context in which `in_thread` uses the threads of *bulkhead*.

    The caller's own context, in which the original search runs, is no longer limited by any
    bulkhead, not even by the bulkhead of another middleware that made this call.
    """
    context = copy_context()
    context.run(_bulkhead.set, bulkhead)
    if _bulkhead.get() is not None:
        _bulkhead.set(None)
    return context


def current_bulkhead() -> Bulkhead | None:
    """Return the bulkhead that limits threads started in this context.

    Returns ``None`` in an original search and outside of flows.
    """
    return _bulkhead.get()


def _settle(future: asyncio.Future[T], value: T | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


async def in_thread(call: Callable[[], T], bulkhead: Bulkhead | None = None) -> T:
    """Run *call* in a daemon thread and await the result.

    The event loop's default pool is not used, because it is small and belongs to the application.
    An original search always gets a thread. All other calls get a thread of *bulkhead*, by default
    the bulkhead of the current context.

    Raises:
        ModelError: ``overloaded`` if no thread is free.
        BaseException: The exception that *call* raises.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context: Context = copy_context()
    bulkhead, is_running = bulkhead or _bulkhead.get(), False

    def work() -> None:
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
            loop.call_soon_threadsafe(_settle, future, value, failure)
        del failure  # Breaks a reference cycle: its traceback refers to this frame.

    (_threads if bulkhead is None else bulkhead).start(work)
    try:
        return await future
    finally:
        if bulkhead is not None:
            bulkhead.give_up(is_running)


def call_all(calls: Sequence[Callable[[], T]], bulkhead: Bulkhead, limit: int) -> list[T]:
    """Return the results of *calls*, in the order of *calls*.

    The calls run in the caller's thread and in free threads of *bulkhead*. If a call raises an
    exception, the exception is raised here and no other call begins; running calls go on to their
    end.

    Args:
        calls: Functions without parameters.
        bulkhead: Provides the threads.
        limit: The most calls that run at once.
    """
    waiting = deque(enumerate(calls))
    done: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()

    def work(context: Context) -> None:
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
        with suppress(ModelError):
            for _ in range(min(limit, len(calls)) - 1):
                bulkhead.start(partial(work, copy_context()))
        work(copy_context())
        while len(results) < len(calls):
            position, value, error = done.get()
            if error is not None:
                raise error
            results[position] = value
    finally:
        waiting.clear()
    return [results[position] for position in range(len(calls))]


async def acall_all(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], limit: int) -> list[T]:
    """Return the results of *calls*, in the order of *calls*; at most *limit* calls run at once.

    If a call raises an exception, or the caller is cancelled, all other calls are cancelled and
    awaited.
    """
    room = asyncio.Semaphore(limit)

    async def perform(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with room:
            return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(perform(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
