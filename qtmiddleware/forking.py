"""What a forked process must not inherit: locks that other threads held, and work only its parent goes on with."""

from __future__ import annotations

import os
from threading import Lock
from types import TracebackType
from typing import Final, Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something that can begin anew in the process of a child."""

    def renew(self) -> None:
        """Make new locks, and forget what only the parent is doing."""


class ForkLock:
    """A lock that a forked process finds free, whoever held it in the parent."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """A lock of our own."""
        self._lock = Lock()

    def acquire(self, *, timeout: float = -1) -> bool:
        """As that of `threading.Lock`."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """As that of `threading.Lock`."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self._lock.release()


_known: Final[WeakSet[Renewable]] = WeakSet()


def renew_after_fork(it: Renewable) -> None:
    """Call ``it.renew()`` in every process that is forked from this one, as long as *it* lives."""
    _known.add(it)


def _renew_all() -> None:
    for it in list(_known):
        it.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
