"""Load the packages and data that the first query needs, in background threads.

Packages are imported once per process. If a process forks during an import, the package stays
half imported in the child, because the importing thread does not exist there. To prevent this,
every fork waits until the loading has ended.
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
"""The threads that load, each with an event that is set when queries need not wait any more.

Iterate over a copy, because threads come and go: without the GIL only `dict.copy` is sure to see
one state.
"""
_last_start = 0.0


def load_in_background(load: Callable[[], None], rehearse: Callable[[], None]) -> None:
    """Perform *load* and then *rehearse* in a thread; do nothing if no thread can start.

    Queries wait for *load* but not for *rehearse*. Both functions handle their own errors. The
    thread is not a daemon, because a daemon that is stopped inside a package's native code can
    crash the ending interpreter. A process that ends at once waits for the thread.
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
    """Return whether a query must wait because a package or data is being loaded."""
    # Every query asks this, and mostly nothing is being loaded.
    return bool(_loading) and any(
        not loaded.is_set() and thread.is_alive() for thread, loaded in _loading.copy().items()
    )


def is_warming() -> bool:
    """Return whether a thread is loading or rehearsing.

    Returns false once the last thread started more than 10 seconds ago.
    """
    return monotonic() < _last_start + _LONGEST_WAIT and any(
        thread.is_alive() for thread in _loading.copy()
    )


def wait_until_loaded(deadline: Deadline) -> None:
    """Wait until everything is loaded or *deadline* has passed, then call ``deadline.begin()``."""
    for thread, loaded in _loading.copy().items():
        if thread.is_alive():
            loaded.wait(min(deadline.remaining(), _LONGEST_WAIT))
    deadline.begin()


async def await_until_loaded(deadline: Deadline) -> None:
    """Wait like `wait_until_loaded`, without blocking the running loop."""
    while is_loading() and not deadline.passed:
        await asyncio.sleep(_POLL_SECONDS)
    deadline.begin()


def finish_loading() -> None:
    """Wait until the loading threads have ended; return at once in a loading thread."""
    threads = tuple(_loading.copy())
    for thread in threads if threading.current_thread() not in threads else ():
        # A thread that has not started yet cannot be joined.
        with suppress(RuntimeError):
            thread.join(_LONGEST_WAIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=finish_loading)
