"""Daemon threads shared by all flows, and a bulkhead that limits how many one middleware may hold.

A thread that is inside somebody else's call cannot be stopped; when its time is over nobody waits
for it any more. The threads are daemons because a call that hangs must not keep the interpreter
from ending: with one that sleeps for 8 s under way a process ends after 8.1 s on
`ThreadPoolExecutor` and after 8.3 s on `anyio.to_thread`, and at once here.
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
    """All threads of a middleware are taken; the message is our own, whatever refused the call."""


def _is_ending() -> bool:
    """Whether the interpreter is: daemon threads are stopped for good then, and no new one can be had."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


class Threads:
    """A pool of daemon threads that start when none is idle and end when idle: no task waits for another one.

    What they wait with is looked up when it is made: gevent puts greenlets and queues of its own in
    place of threads and theirs, at times after this module was loaded, and one queue of before
    would stop them all.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the idle threads: they are the parent's. gevent's greenlets, which survive a fork, wait for ever."""
        # What the idle threads wait at, each for its next task or for `None`, which lets it go.
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []

    def start(self, task: Callable[[], None]) -> None:
        """Perform *task* at once; here where no thread can be had, as when the interpreter is ending."""
        if not self.take(task):
            task()

    def take(self, task: Callable[[], None]) -> bool:
        """Perform *task* at once in a thread; returns whether one could be had."""
        if sys.is_finalizing():
            # A thread that is begun now is waited for in vain.
            return False
        with suppress(IndexError):
            while True:
                tasks = self._idle.pop()
                if type(tasks) is queue.SimpleQueue:
                    tasks.put(task)
                    return True
                tasks.put(None)
        tasks = queue.SimpleQueue()
        # Not as an argument: a thread keeps those as long as it lives, with all that its first task
        # found.
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
            # A task answers for its own errors; whatever escapes it must not cost the pool a
            # thread.
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
                    # Somebody has counted on this thread in the meantime: their task is about to
                    # arrive.
                    task = tasks.get()
                else:
                    return


_threads: Final = Threads()


class Bulkhead:
    """At most *limit* threads at a time for the work of one middleware (Nygard, Release It!, 2007).

    A call that finds none free is refused at once, since a queue behind calls that hang never
    moves. Logs a warning when that begins, and when half of the threads are free again; *refused*
    counts such calls. *in_use* is how many threads are taken now, *given_up* how many calls were
    left running because they were late. Thread-safe; a forked process begins with all threads free.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self.limit = limit
        self.refused = 0
        self.given_up = 0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the threads in use: they are the parent's."""
        self._lock = threading.Lock()
        self.in_use = 0
        self._is_full = False

    def start(self, task: Callable[[], None]) -> None:
        """Perform *task* at once in a thread; raises `ModelError` "overloaded" where none is free."""
        with self._lock:
            has_room = self.in_use < self.limit
            self.in_use += has_room
        if not has_room:
            raise self._refusal()

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
        # The system gives no more threads. Nothing of ours may be performed in an event loop
        # instead.
        self._release()
        raise self._refusal()

    def give_up(self, calls: int) -> None:
        """Count *calls* that go on in their threads and that nobody waits for any more."""
        if calls:
            with self._lock:
                self.given_up += calls

    def _refusal(self) -> ModelError:
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


def context_within(bulkhead: Bulkhead) -> Context:
    """A copy of the caller's context in which `in_thread` takes threads of *bulkhead*.

    In the caller's own context it is bound by none from here on, not even where a search that
    another middleware makes beside its original has called us: what is performed there is an
    original search.
    """
    context = copy_context()
    context.run(_bulkhead.set, bulkhead)
    if _bulkhead.get() is not None:
        _bulkhead.set(None)
    return context


def current_bulkhead() -> Bulkhead | None:
    """The bulkhead that counts the threads started here; ``None`` inside an original search and outside of any flow."""
    return _bulkhead.get()


def _settle(future: asyncio.Future[T], value: T | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


async def in_thread(call: Callable[[], T], bulkhead: Bulkhead | None = None) -> T:
    """Await the result of *call*, performed in a thread of ours: the loop's default pool is small and not ours to fill.

    An original search always gets a thread. What is performed beside it takes one of its
    middleware's `Bulkhead`, as does what names a *bulkhead*; raises `ModelError` "overloaded" where
    none is free.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context: Context = copy_context()
    bulkhead, is_running = bulkhead or _bulkhead.get(), False

    def work() -> None:
        nonlocal is_running
        if future.done():  # Nobody waits any more.
            return
        is_running = True
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = context.run(call)
        except StopIteration as error:
            # A future refuses it, as a coroutine does.
            failure = RuntimeError("the function raised StopIteration")
            failure.__cause__ = error
        except BaseException as error:
            failure = error
        is_running = False
        # A loop that was closed in the meantime has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, future, value, failure)
        del failure  # Its traceback holds this frame, which must not hold it in turn.

    (_threads if bulkhead is None else bulkhead).start(work)
    try:
        return await future
    finally:
        if bulkhead is not None:
            bulkhead.give_up(is_running)


def call_all(calls: Sequence[Callable[[], T]], bulkhead: Bulkhead, limit: int) -> list[T]:
    """What each of *calls* returns, in their order, at most *limit* at once.

    They are performed in the caller's thread and in threads of *bulkhead*, as far as that has any
    free. Raises what one of them raises, and begins no other then; those under way end by
    themselves.
    """
    waiting = deque(enumerate(calls))
    done: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()

    def work(context: Context) -> None:
        with suppress(IndexError):
            while True:
                place, call = waiting.popleft()
                try:
                    done.put((place, context.copy().run(call), None))
                except BaseException as error:
                    waiting.clear()
                    done.put((place, None, error))

    results: dict[int, Any] = {}
    try:
        with suppress(ModelError):
            for _ in range(min(limit, len(calls)) - 1):
                bulkhead.start(partial(work, copy_context()))
        work(copy_context())
        while len(results) < len(calls):
            place, value, error = done.get()
            if error is not None:
                raise error
            results[place] = value
    finally:
        waiting.clear()
    return [results[place] for place in range(len(calls))]


async def acall_all(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], limit: int) -> list[T]:
    """`call_all`, awaiting. Where one raises, or this is cancelled, the others are cancelled and waited for."""
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
