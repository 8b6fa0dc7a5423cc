"""Reset locks and counts in a forked process.

The parent's other threads do not exist in the child process. A lock that such a thread held at the
fork would never be released, and a count of running calls would still include its call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet


class Resettable(Protocol):
    """An object that can be reset in a forked process."""

    def reset_state(self) -> None:
        """Reset the object after a fork: make new locks and forget the parent's running work."""


_locks: Final[WeakSet[threading.Lock]] = WeakSet()
_renewables: Final[WeakSet[Resettable]] = WeakSet()


def register_fork_reset(resettable: Resettable) -> None:
    """Reset *resettable* in every forked process, by calling its `reset_state`.

    The reference is weak: *resettable* can be garbage-collected.
    """
    _renewables.add(resettable)


def make_lock() -> threading.Lock:
    """Return a lock that is free in every forked process, even if a thread of the parent held it.

    It is a real `threading.Lock`, because an interrupt inside a wrapper could leave a lock held.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _reset_all() -> None:
    # The child has one thread, so another thread held each lock that is not free.
    for lock in list(_locks):
        lock.acquire(blocking=False)
        lock.release()
    for resettable in list(_renewables):
        resettable.reset_state()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


class Draining:
    """Closes a resource as soon as no call is using it (connection draining).

    Each call uses the resource inside ``with self.in_use:``. After `close_when_unused`, *close* is
    called when the last running call ends. A later call may reopen the resource; then *close* is
    called again when that call ends. *close* must not block, because it delays the caller.
    Thread-safe; a forked process begins without running calls.
    """

    __slots__ = ("__weakref__", "_calls", "_close", "_is_retired", "_lock")

    def __init__(self, close: Callable[[], None]) -> None:
        self._close: Final = close
        self._is_retired = False
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Set the number of running calls to 0 after a fork: the calls run only in the parent."""
        self._calls = 0
        # Re-entrant: the garbage collector may start under the lock and close a generator that is
        # inside, which leaves in the same thread.
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        with self._lock:
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            # A call that began in the parent leaves here without having been counted.
            self._calls = max(0, self._calls - 1)
            self._close_if_unused()

    def close_when_unused(self) -> None:
        """Close the resource when the last running call ends, or now if no call is running."""
        with self._lock:
            self._is_retired = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._calls:
            self._close()
