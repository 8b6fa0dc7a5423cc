"""Loading what the first question needs, in threads beside whatever the process does meanwhile.

Packages are imported once a process. One that is half imported when a process forks stays so in the child, since the
thread that was at it is not there: every fork waits until the loading has ended.
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

_at_work: Final[dict[threading.Thread, threading.Event]] = {}
"""The threads that load, each with what is set when questions need not wait for it any more."""
_last_begun = 0.0


def load_in_background(load: Callable[[], None], rehearse: Callable[[], None]) -> None:
    """Perform *load*, which questions wait for, and *rehearse*, in a thread; not at all where none can be had.

    Both handle their own errors. The thread is no daemon: one that is stopped inside a package's native code can take
    the ending interpreter down with it. So a process that ends at once waits until the thread has ended.
    """
    loaded = threading.Event()

    def work() -> None:
        try:
            load()
            loaded.set()
            rehearse()
        finally:
            loaded.set()
            _at_work.pop(thread, None)

    global _last_begun
    _last_begun = monotonic()
    thread = threading.Thread(target=work, name="qtmiddleware-loading")
    _at_work[thread] = loaded
    try:
        thread.start()
    except RuntimeError:
        _at_work.pop(thread, None)


def is_loading() -> bool:
    """Whether there is anything for a question to wait for."""
    return any(not loaded.is_set() and thread.is_alive() for thread, loaded in tuple(_at_work.items()))


def is_warming() -> bool:
    """Whether a thread loads still, rehearsal and all; one that takes very long is not waited for."""
    return monotonic() < _last_begun + _LONGEST_WAIT and any(thread.is_alive() for thread in tuple(_at_work))


def wait_until_loaded(deadline: Deadline) -> None:
    """Wait until everything is loaded, at most until *deadline*, and begin it."""
    for thread, loaded in tuple(_at_work.items()):
        if thread.is_alive():
            loaded.wait(min(deadline.remaining(), _LONGEST_WAIT))
    deadline.begin()


async def await_until_loaded(deadline: Deadline) -> None:
    """`wait_until_loaded` without blocking the running loop."""
    while is_loading() and not deadline.passed:
        await asyncio.sleep(_POLL_SECONDS)
    deadline.begin()


def finish_loading() -> None:
    """Wait until the threads that load have ended; one of them waits for none."""
    threads = tuple(_at_work)
    for thread in threads if threading.current_thread() not in threads else ():
        # One that has not begun yet cannot be joined.
        with suppress(RuntimeError):
            thread.join(_LONGEST_WAIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=finish_loading)
