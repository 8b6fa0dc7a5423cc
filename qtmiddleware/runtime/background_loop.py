"""Run coroutines in a shared event loop, which runs in a daemon thread until the process ends.

An asynchronous client's connections end with the event loop that opened them. In the shared loop
the connections can be reused. Use the shared loop if the caller has no event loop, or one that
ends with each call.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable
from typing import Final, TypeVar

from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.types import NEVER

T = TypeVar("T")

_here: Final = threading.local()


class _LoopThread(threading.Thread):
    def __init__(self, depth: int) -> None:
        super().__init__(name="qtmiddleware-loop", daemon=True)
        self.depth = depth
        self.loop = asyncio.new_event_loop()
        self.start()

    def run(self) -> None:
        _here.depth = self.depth
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_lock: Final = make_lock()
_threads: Final[dict[int, _LoopThread]] = {}


def _get_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop for the calling thread's coroutines."""
    # A loop cannot wait for itself: code that runs in the shared loop gets a second one.
    depth = getattr(_here, "depth", -1) + 1
    with _lock:
        thread = _threads.get(depth)
        # In a forked process, the parent's threads count as dead.
        if thread is None or not thread.is_alive():
            thread = _threads[depth] = _LoopThread(depth)
    return thread.loop


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def run_in_background_loop(awaitable: Awaitable[T], timeout: float = NEVER) -> T:
    """Run *awaitable* in the background loop, and block until its result is known.

    It sees the caller's context variables. It is cancelled after *timeout* seconds, or if the
    caller is interrupted.
    """
    future = asyncio.run_coroutine_threadsafe(_await(awaitable), _get_loop())
    try:
        return future.result(None if timeout == NEVER else timeout)
    finally:
        # After a timeout or an interrupt this cancels the coroutine; a future that is done stays.
        future.cancel()


def is_async(function: object) -> bool:
    """Return whether calling *function* returns a coroutine.

    Looks at the function inside partials, methods, callable objects and `functools.wraps` wrappers.
    """
    if inspect.iscoroutinefunction(function):
        return True
    is_partial = isinstance(function, functools.partial)
    inner = getattr(function, "func" if is_partial else "__wrapped__", None)
    if inner is not None and inner is not function:
        return is_async(inner)
    if inspect.isroutine(function) or inspect.isclass(function):
        return False
    return inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004
