"""Load the packages and data that the first query needs, in background threads.

If a process forks during an import, the package stays half imported in the child process, because
the importing thread does not exist there. Therefore every fork waits until the loading has ended.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from qtmiddleware.types import Deadline

_POLL_SECONDS: Final = 0.005
# Neither a query nor a fork waits longer, whatever a package does while it is imported.
_LONGEST_WAIT: Final = 10.0

_loading: Final[dict[threading.Thread, threading.Event]] = {}
"""The loading threads. Each has an event that is set once queries no longer have to wait for it.

Iterate over a copy, because other threads change the dict. Only `dict.copy` is atomic without the
GIL.
"""
_last_start = 0.0


def load_in_background(load: Callable[[], None], warm_up: Callable[[], None]) -> None:
    """Call *load* and then *warm_up* in a thread. Do nothing if no thread can start.

    Queries wait for *load*, but not for *warm_up*. Both functions must handle their own errors.
    """
    loaded = threading.Event()

    def load_and_warm_up() -> None:
        try:
            load()
            loaded.set()
            warm_up()
        finally:
            # Queries must not wait any longer, even if `load` failed.
            loaded.set()
            _loading.pop(thread, None)

    # Not a daemon: stopped inside a package's native code, it could crash the ending interpreter.
    # So a process that ends early waits for this thread.
    global _last_start
    _last_start = monotonic()
    thread = threading.Thread(target=load_and_warm_up, name="qtmiddleware-loading")
    _loading[thread] = loaded
    try:
        thread.start()
    except RuntimeError:
        _loading.pop(thread, None)


def is_loading() -> bool:
    """Return whether a package or data that a query needs is still being loaded."""
    # Every query asks this, and mostly nothing is being loaded.
    return bool(_loading) and any(
        not loaded.is_set() and thread.is_alive() for thread, loaded in _loading.copy().items()
    )


def is_warming_up() -> bool:
    """Return whether a thread that `load_in_background` started is still running.

    Returns ``False`` 10 seconds after the last thread started, even if it is still running.
    """
    return monotonic() < _last_start + _LONGEST_WAIT and any(
        thread.is_alive() for thread in _loading.copy()
    )


def wait_until_loaded(deadline: Deadline) -> None:
    """Wait until everything is loaded, but not beyond *deadline*. Then begin its countdown."""
    for thread, loaded in _loading.copy().items():
        if thread.is_alive():
            loaded.wait(min(deadline.remaining(), _LONGEST_WAIT))
    deadline.begin()


async def await_until_loaded(deadline: Deadline) -> None:
    """Wait like `wait_until_loaded`, without blocking the running loop."""
    while is_loading() and not deadline.passed:
        await asyncio.sleep(_POLL_SECONDS)
    deadline.begin()


def wait_for_loading_threads() -> None:
    """Wait until the loading threads have ended. Return at once in a loading thread."""
    threads = tuple(_loading.copy())
    for thread in threads if threading.current_thread() not in threads else ():
        # A thread that has not started yet cannot be joined.
        with suppress(RuntimeError):
            thread.join(_LONGEST_WAIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait_for_loading_threads)
