"""Coroutines for callers without an event loop, or with one that soon ends: one long-lived loop in a daemon thread.

An asynchronous client keeps its connections only as long as the loop they were opened in.
Coroutines that are started here share one loop for the life of the process, so that blocking
callers, and callers with a loop a call, reuse them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import aclosing, contextmanager
from typing import Any, Final, TypeVar

from qtmiddleware.runtime.forking import ForkLock, renew_after_fork
from qtmiddleware.types import NEVER

T = TypeVar("T")


class _BackgroundLoop:
    """The loop with its thread; started by the first coroutine, and anew in a forked process."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the loop: its thread is the parent's."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def is_current(self) -> bool:
        """Whether the calling thread is the one that runs this loop."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def submit(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start the coroutine that *call* returns, in a copy of the caller's context; returns its future."""
        with self._lock.free:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="qtmiddleware-loop", daemon=True
                )
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(call(), loop)

    def stop(self) -> None:
        """End the loop, if it was started."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # What was opened in the loop is closed in it.
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


_background: Final = _BackgroundLoop()


def is_in_background_loop() -> bool:
    """Whether the calling code runs in the thread of the shared loop."""
    return _background.is_current()


def run_in_background_loop(call: Callable[[], Coroutine[Any, Any, T]], timeout: float = NEVER) -> T:
    """The result of the coroutine that *call* returns, waiting at most *timeout* seconds in this thread.

    Raises what the coroutine raises, and `TimeoutError` after *timeout*; the coroutine is cancelled
    then, and where the caller is interrupted. Thread-safe. Context variables of the caller are
    visible inside. Called from the loop's own thread, which must not wait for itself, the coroutine
    runs in a loop of its own in another thread.
    """
    with _loop_to_wait_for() as loop:
        return _wait(loop.submit(call), timeout)


def iterate_in_background_loop(
    call: Callable[[], AsyncGenerator[T, None]],
) -> Generator[T, None, None]:
    """The items of the asynchronous generator that *call* returns; it is read on while the caller does something else.

    Raises what the generator raises. Closing this cancels it. All of it runs in one task, as
    `run_in_background_loop` would run it.
    """
    pieces_read: queue.SimpleQueue[T | Future[None]] = queue.SimpleQueue()

    async def read() -> None:
        async with aclosing(call()) as pieces:
            async for piece in pieces:
                pieces_read.put(piece)

    with _loop_to_wait_for() as loop:
        future = loop.submit(read)
        future.add_done_callback(pieces_read.put)
        try:
            while not isinstance(piece := pieces_read.get(), Future):
                yield piece
            future.result()
        finally:
            future.cancel()


async def await_in_background_loop(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`run_in_background_loop` for a caller that awaits; cancelling the caller cancels the coroutine."""
    if _background.is_current():
        return await call()
    return await asyncio.wrap_future(_background.submit(call))


@contextmanager
def _loop_to_wait_for() -> Iterator[_BackgroundLoop]:
    if not _background.is_current():
        yield _background
        return
    other = _BackgroundLoop()
    try:
        yield other
    finally:
        other.stop()


def _wait(future: Future[T], timeout: float) -> T:
    try:
        return future.result(None if timeout == NEVER else timeout)
    except FutureTimeout:
        if future.done():  # The coroutine's own.
            raise
        raise TimeoutError("the coroutine did not end in time") from None
    finally:
        future.cancel()


def is_async(fn: object) -> bool:
    """Whether calling *fn* gives a coroutine, seen through partials, methods, callable objects and wrappers.

    A wrapper that `functools.wraps` marked as another function's counts as what that function is.
    """
    if isinstance(fn, functools.partial):
        return is_async(fn.func)
    if inspect.ismethod(fn) or isinstance(fn, (staticmethod, classmethod)):
        return is_async(fn.__func__)
    if inspect.iscoroutinefunction(fn):
        return True
    if (wrapped := getattr(fn, "__wrapped__", None)) is not None and wrapped is not fn:
        return is_async(wrapped)
    if inspect.isroutine(fn) or inspect.isclass(fn):
        return False
    call = getattr(type(fn), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(getattr(call, "__func__", call))
