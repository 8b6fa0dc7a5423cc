"""Run coroutines in one long-lived event loop in a daemon thread.

An asynchronous client's connections live only as long as the event loop that opened them. The
shared loop lives as long as the process, so its connections are reused. Two kinds of callers use
the shared loop: callers without a loop, and callers whose loop ends with each call.
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
    """An event loop in a thread; the first coroutine starts both.

    A forked process starts a new loop with its first coroutine.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, forget the loop, whose thread belongs to the parent process."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def is_current(self) -> bool:
        """Return whether the calling thread runs this loop."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def submit(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start the coroutine that *call* returns, and return a future of the coroutine's result.

        The coroutine runs in a copy of the caller's context.
        """
        with self._lock.free:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_until_stopped,
                    args=(self._loop,),
                    name="qtmiddleware-loop",
                    daemon=True,
                )
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(call(), loop)

    def stop(self) -> None:
        """Stop the loop if it is running."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # An asynchronous generator must be closed by the loop that it was started in.
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


_background: Final = _BackgroundLoop()


def is_in_background_loop() -> bool:
    """Return whether the calling code runs in the thread of the shared loop."""
    return _background.is_current()


def run_in_background_loop(call: Callable[[], Coroutine[Any, Any, T]], timeout: float = NEVER) -> T:
    """Run the coroutine that *call* returns, block this thread, and return the coroutine's result.

    The coroutine sees the caller's context variables. It is cancelled at the timeout, or if the
    caller is interrupted. If the loop's own thread calls this function, the coroutine runs in a
    second loop in another thread, because a loop cannot wait for itself. Thread-safe.

    Args:
        call: A function without parameters that returns the coroutine.
        timeout: How many seconds to wait; by default without a limit.

    Raises:
        TimeoutError: The coroutine has not ended after *timeout* seconds.
        BaseException: The exception that the coroutine raises.
    """
    with _open_waitable_loop() as loop:
        return _wait_for_result(loop.submit(call), timeout)


def iterate_in_background_loop(
    call: Callable[[], AsyncGenerator[T, None]],
) -> Generator[T, None, None]:
    """Yield the items of the asynchronous generator that *call* returns.

    The background loop keeps reading the asynchronous generator while the caller works on an item.
    The whole generator runs in one task. Closing this generator cancels the task. Exceptions of the
    asynchronous generator are raised here.
    """
    pieces_read: queue.SimpleQueue[T | Future[None]] = queue.SimpleQueue()

    async def read() -> None:
        async with aclosing(call()) as pieces:
            async for piece in pieces:
                pieces_read.put(piece)

    with _open_waitable_loop() as loop:
        future = loop.submit(read)
        # The future itself, once it is done, marks the end of the items.
        future.add_done_callback(pieces_read.put)
        try:
            while not isinstance(piece := pieces_read.get(), Future):
                yield piece
            future.result()
        finally:
            future.cancel()


async def await_in_background_loop(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that *call* returns in the shared loop, and await its result.

    The running loop is not blocked. Cancelling the caller cancels the coroutine.
    """
    if _background.is_current():
        return await call()
    return await asyncio.wrap_future(_background.submit(call))


@contextmanager
def _open_waitable_loop() -> Iterator[_BackgroundLoop]:
    """Yield an event loop that the calling thread can wait for.

    This is the shared loop. In the thread of the shared loop, this is a second loop, because a loop
    cannot wait for itself.
    """
    if not _background.is_current():
        yield _background
        return
    extra_loop = _BackgroundLoop()
    try:
        yield extra_loop
    finally:
        extra_loop.stop()


def _wait_for_result(future: Future[T], timeout: float) -> T:
    try:
        return future.result(None if timeout == NEVER else timeout)
    except FutureTimeout:
        if future.done():  # The coroutine itself raised it.
            raise
        raise TimeoutError("the coroutine did not end in time") from None
    finally:
        # After a timeout or an interrupt this cancels the coroutine; a future that is done stays.
        future.cancel()


def is_async(fn: object) -> bool:
    """Return whether calling *fn* returns a coroutine.

    Partials, methods, callable objects and wrappers are judged by the function inside them. A
    function marked by `functools.wraps` is judged by the function that it wraps.
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
