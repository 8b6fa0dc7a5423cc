"""Loading what the first question needs, in threads beside whatever the process does meanwhile.

Packages are imported once a process. One that is half imported when a process forks stays so in the child, since the
thread that was at it is not there: every fork waits until the loading has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread
from typing import Final

from qtmiddleware.deadline import Deadline

_POLL_SECONDS: Final = 0.005
# Nothing is held up for longer, whatever a package does while it is imported.
_LONGEST_WAIT: Final = 10.0

_loading: Final[set[Thread]] = set()


def load_in_background(load: Callable[[], None]) -> None:
    """Perform *load*, which handles its own errors, in a thread of its own; not at all where none can be had.

    The thread is no daemon: one that is stopped inside a package's native code can take the ending interpreter down
    with it. So a process that ends at once waits until the loading has ended.
    """

    def work() -> None:
        try:
            load()
        finally:
            _loading.discard(thread)

    thread = Thread(target=work, name="qtmiddleware-loading")
    _loading.add(thread)
    try:
        thread.start()
    except RuntimeError:
        _loading.discard(thread)


def is_loading() -> bool:
    """Whether anything is being loaded."""
    return any(thread.is_alive() for thread in tuple(_loading))


def wait_until_loaded(deadline: Deadline) -> None:
    """Wait until nothing is being loaded, at most until *deadline*; returns at once in a thread that loads."""
    threads = tuple(_loading)
    if current_thread() in threads:
        return
    for thread in threads:
        # One that has not begun yet cannot be joined.
        with suppress(RuntimeError):
            thread.join(min(deadline.remaining(), _LONGEST_WAIT))


async def await_until_loaded(deadline: Deadline) -> None:
    """`wait_until_loaded` without blocking the running loop."""
    while is_loading() and not deadline.passed:
        await asyncio.sleep(_POLL_SECONDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: wait_until_loaded(Deadline()))
