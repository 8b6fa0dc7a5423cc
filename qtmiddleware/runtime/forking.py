"""Make a forked process independent of its parent's threads, running calls and connections.

The parent's other threads do not exist in the child process. A lock that such a thread held at the
fork would never be released, and a count of running calls would still include its call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


_locks: Final[WeakSet[threading.Lock]] = WeakSet()
_resettables: Final[WeakSet[Any]] = WeakSet()


def register_fork_reset(resettable: Any) -> None:
    """Call *resettable*'s `reset_state` in every forked process, as long as the object exists."""
    _resettables.add(resettable)


def make_lock() -> threading.Lock:
    """Return a lock that is free in every forked process, even if the parent held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


class MadeOnce(Generic[T]):
    """An object such as a client that is made on first use, once per process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = make_lock()
        # A forked process keeps its parent's object, but never uses or closes it.
        self._by_process: dict[int, T] = {}

    def get(self, make: Callable[[], T]) -> T:
        """Return the object, which *make* makes if there is none."""
        with self._lock:
            process = os.getpid()
            if process not in self._by_process:
                self._by_process[process] = make()
            return self._by_process[process]

    def close(self) -> Any:
        """Close the object, if there is one, and return what its method returned."""
        with self._lock:
            made = self._by_process.pop(os.getpid(), None)
        close = getattr(made, "close", None)
        return None if close is None else close()


def _reset_all() -> None:
    # Not by `release`: a thread that was just about to hold a lock leaves it neither held nor free.
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]
    for resettable in list(_resettables):
        resettable.reset_state()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
