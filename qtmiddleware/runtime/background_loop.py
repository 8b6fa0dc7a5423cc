"""Run coroutines in a shared event loop, which runs in a daemon thread until the process ends.

An asynchronous client's connections end with the event loop that opened them. In the shared loop
the connections can be reused. Use the shared loop if the caller has no event loop, or one that
ends with each call.
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

from qtmiddleware.runtime.forking import make_lock, register_fork_reset
from qtmiddleware.types import NEVER

T = TypeVar("T")


class _BackgroundLoop:
    """An event loop in a daemon thread. The first coroutine starts the loop and the thread.

    A forked process starts a new loop with its first coroutine.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget the loop after a fork, because its thread belongs to the parent process."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def is_running_here(self) -> bool:
        """Return whether this loop runs in the calling thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def start_coroutine(self, make_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start the coroutine that *make_coroutine* returns, and return a future for its result.

        The coroutine runs in a copy of the caller's context.
        """
        with self._lock:
            # A loop whose thread has died would never run the coroutine.
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
        return asyncio.run_coroutine_threadsafe(make_coroutine(), loop)

    def stop(self) -> None:
        """Stop the loop, if it was started."""
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
    return _background.is_running_here()


def run_in_background_loop(
    make_coroutine: Callable[[], Coroutine[Any, Any, T]], timeout: float = NEVER
) -> T:
    """Run the coroutine that *make_coroutine* returns, and block until its result is known.

    The coroutine sees the caller's context variables. It is cancelled at the timeout, or if the
    caller is interrupted. A call from the shared loop's own thread uses a second loop, because a
    loop cannot wait for itself. Thread-safe.

    Args:
        make_coroutine: A function without parameters that returns the coroutine.
        timeout: How many seconds to wait; by default without a limit.

    Raises:
        TimeoutError: The coroutine did not end within *timeout* seconds.
        BaseException: The exception that the coroutine raises.
    """
    with _open_waitable_loop() as loop:
        return _wait_for_result(loop.start_coroutine(make_coroutine), timeout)


def iterate_in_background_loop(
    make_generator: Callable[[], AsyncGenerator[T, None]],
) -> Generator[T, None, None]:
    """Yield the items of the asynchronous generator that *make_generator* returns.

    One task of the background loop reads all items, without waiting for the caller to take them.
    Closing this generator cancels the task. The asynchronous generator's exceptions are raised
    here.
    """
    items_read: queue.SimpleQueue[T | Future[None]] = queue.SimpleQueue()

    async def read_items() -> None:
        async with aclosing(make_generator()) as items:
            async for item in items:
                items_read.put(item)

    with _open_waitable_loop() as loop:
        future = loop.start_coroutine(read_items)
        # The future itself, once it is done, marks the end of the items.
        future.add_done_callback(items_read.put)
        try:
            while not isinstance(item := items_read.get(), Future):
                yield item
            future.result()
        finally:
            future.cancel()


async def await_in_background_loop(make_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in the shared loop, and await its result without blocking the running loop.

    *make_coroutine* returns the coroutine. Cancelling the caller cancels the coroutine.
    """
    # In the shared loop itself there is nothing to hand over.
    if _background.is_running_here():
        return await make_coroutine()
    return await asyncio.wrap_future(_background.start_coroutine(make_coroutine))


@contextmanager
def _open_waitable_loop() -> Iterator[_BackgroundLoop]:
    """Yield the shared loop. Code that runs in the shared loop's thread gets a second loop instead.

    Otherwise this code would block the loop that it waits for.
    """
    if not _background.is_running_here():
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


def is_async(function: object) -> bool:
    """Return whether calling *function* returns a coroutine.

    Looks at the function inside partials, methods, callable objects and `functools.wraps` wrappers.
    """
    if isinstance(function, functools.partial):
        return is_async(function.func)
    if inspect.ismethod(function) or isinstance(function, (staticmethod, classmethod)):
        return is_async(function.__func__)
    if inspect.iscoroutinefunction(function):
        return True
    if (wrapped := getattr(function, "__wrapped__", None)) is not None and wrapped is not function:
        return is_async(wrapped)
    if inspect.isroutine(function) or inspect.isclass(function):
        return False
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(getattr(call, "__func__", call))
