"""Daemon threads shared by all flows.

A thread that is inside somebody else's call cannot be stopped; when its time is over nobody waits for it any more. The
threads are daemons, which those of `concurrent.futures` are not: a call that hangs must not keep the interpreter from
ending.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from qtmiddleware.flights import Flight

T = TypeVar("T")

MAX_THREADS: Final = 256
IDLE_SECONDS: Final = 10.0


class Threads:
    """Daemon threads that are made when needed and go when idle."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = Lock()
        self._idle = 0
        self._alive = 0

    def start(self, task: Callable[[], None]) -> None:
        """Perform *task* soon; at once and here where no thread can be had, as when the interpreter is ending."""
        if sys.is_finalizing():
            # Daemon threads have been stopped for good, and one that is begun now is waited for in vain.
            task()
            return
        with self._lock:
            grow = self._idle <= 0 and self._alive < MAX_THREADS
            if grow:
                self._alive += 1
            else:
                # Below zero: so many tasks wait for the next threads that are done.
                self._idle -= 1
        if not grow:
            self._tasks.put(task)
            return
        try:
            Thread(target=self._work, args=(task,), name="qtmiddleware", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._alive -= 1
            task()

    def _work(self, task: Callable[[], None]) -> None:
        while True:
            # A task answers for its own errors; whatever escapes it must not cost the pool a thread.
            with suppress(BaseException):
                task()
            del task  # An idle thread keeps nothing alive.
            with self._lock:
                self._idle += 1
            try:
                task = self._tasks.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        self._alive -= 1
                        return
                # Somebody has counted on this thread in the meantime: their task is about to arrive.
                task = self._tasks.get()


_threads = Threads()


def _forget_threads() -> None:
    global _threads
    _threads = Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def in_background(task: Callable[[], None]) -> None:
    """Perform *task* soon, in a thread of the shared pool; nobody waits for it."""
    _threads.start(task)


def _settle(future: asyncio.Future[T], value: T | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


async def landing(flight: Flight) -> Any:
    """What *flight* lands with, in whichever thread or loop that happens."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def heard(value: Any) -> None:
        # A loop that was closed in the meantime has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, future, value, None)

    flight.heard(heard)
    try:
        return await future
    finally:
        flight.unheard(heard)


async def in_thread(call: Callable[[], T]) -> T:
    """What *call* returns, performed in a thread of ours: the loop's default pool is small and not ours to fill."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context: Context = copy_context()

    def work() -> None:
        if future.done():  # Nobody waits any more.
            return
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
        # A loop that was closed in the meantime has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, future, value, failure)
        del failure  # Its traceback holds this frame, which must not hold it in turn.

    in_background(work)
    return await future
