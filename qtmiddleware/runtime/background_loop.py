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
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final, TypeVar

from qtmiddleware.runtime.forking import make_lock, register_fork_reset
from qtmiddleware.types import NEVER

T = TypeVar("T")

_here: Final = threading.local()


class _Loops:
    """The shared event loop, and one more for code that would block the loop that it waits for.

    A loop starts when it is first used. A forked process starts new loops.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget the loops after a fork, because their threads belong to the parent process."""
        self._by_depth: dict[int, tuple[threading.Thread, asyncio.AbstractEventLoop]] = {}

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the running loop for the calling thread's coroutines."""
        # Code that runs in the shared loop, and waits for a coroutine, gets the second loop.
        depth = getattr(_here, "depth", -1) + 1
        with self._lock:
            thread, loop = self._by_depth.get(depth, (None, None))
            # A loop whose thread has died would never run the coroutine.
            if thread is None or loop is None or not thread.is_alive():
                loop = asyncio.new_event_loop()
                name = f"qtmiddleware-loop-{depth}" if depth else "qtmiddleware-loop"
                thread = threading.Thread(target=_run, args=(loop, depth), name=name, daemon=True)
                thread.start()
                self._by_depth[depth] = thread, loop
        return loop


def _run(loop: asyncio.AbstractEventLoop, depth: int) -> None:
    _here.depth = depth
    asyncio.set_event_loop(loop)
    loop.run_forever()


_loops: Final = _Loops()


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def run_in_background_loop(awaitable: Awaitable[T], timeout: float = NEVER) -> T:
    """Run *awaitable* in the background loop, and block until its result is known.

    It sees the caller's context variables. It is cancelled at the timeout, or if the caller is
    interrupted. A call from the shared loop's own thread uses a second loop, because a loop cannot
    wait for itself. Thread-safe.

    Args:
        awaitable: A coroutine, or another object that can be awaited in any event loop.
        timeout: How many seconds to wait; by default without a limit.

    Raises:
        TimeoutError: There is no result within *timeout* seconds.
        BaseException: The exception that *awaitable* raises.
    """
    future = asyncio.run_coroutine_threadsafe(_await(awaitable), _loops.get())
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
