"""Loading what the first query needs, in threads beside whatever the process does meanwhile.

Packages are imported once a process. One that is half imported when a process forks stays so in the
child, since the thread that was at it is not there: every fork waits until the loading has ended.
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
# Nothing is held up for longer, whatever a package does while it is imported.
_LONGEST_WAIT: Final = 10.0

_loading: Final[dict[threading.Thread, threading.Event]] = {}
"""The threads that load, each with the event that is set when queries need not wait for it any more.

Read from a copy, as threads come and go: without the GIL only `dict.copy` is sure to see one state.
"""
_last_start = 0.0


def load_in_background(load: Callable[[], None], rehearse: Callable[[], None]) -> None:
    """Perform *load*, which queries wait for, and then *rehearse*, in a thread; not at all where none can be had.

    Both handle their own errors. The thread is no daemon: one that is stopped inside a package's
    native code can take the ending interpreter down with it. So a process that ends at once waits
    until the thread has ended.
    """
    loaded = threading.Event()

    def work() -> None:
        try:
            load()
            loaded.set()
            rehearse()
        finally:
            loaded.set()
            _loading.pop(thread, None)

    global _last_start
    _last_start = monotonic()
    thread = threading.Thread(target=work, name="qtmiddleware-loading")
    _loading[thread] = loaded
    try:
        thread.start()
    except RuntimeError:
        _loading.pop(thread, None)


def is_loading() -> bool:
    """Whether a query must wait for something that is being loaded."""
    # Most processes load nothing, and every query asks.
    return bool(_loading) and any(
        not loaded.is_set() and thread.is_alive() for thread, loaded in _loading.copy().items()
    )


def is_warming() -> bool:
    """Whether a thread still loads or rehearses; one that takes very long does not count."""
    return monotonic() < _last_start + _LONGEST_WAIT and any(
        thread.is_alive() for thread in _loading.copy()
    )


def wait_until_loaded(deadline: Deadline) -> None:
    """Wait until everything is loaded, at most until *deadline*, whose time begins then."""
    for thread, loaded in _loading.copy().items():
        if thread.is_alive():
            loaded.wait(min(deadline.remaining(), _LONGEST_WAIT))
    deadline.begin()


async def await_until_loaded(deadline: Deadline) -> None:
    """`wait_until_loaded` without blocking the running loop."""
    while is_loading() and not deadline.passed:
        await asyncio.sleep(_POLL_SECONDS)
    deadline.begin()


def finish_loading() -> None:
    """Wait until the threads that load have ended; one of these waits for none."""
    threads = tuple(_loading.copy())
    for thread in threads if threading.current_thread() not in threads else ():
        # One that has not begun yet cannot be joined.
        with suppress(RuntimeError):
            thread.join(_LONGEST_WAIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=finish_loading)
