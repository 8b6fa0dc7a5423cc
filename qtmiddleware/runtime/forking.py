"""What a forked process must not inherit: locks that other threads held, and work only its parent goes on with."""

from __future__ import annotations

import os
import threading
from typing import Final, Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something that can begin anew in the process of a child."""

    def renew(self) -> None:
        """Make new locks, and forget what only the parent is doing."""


class ForkLock:
    """Holds a lock that a forked process finds free, whoever held it in the parent: ``with self._lock.free:``.

    The lock itself and no wrapper of it, because only that cannot be interrupted between being taken and being given
    back. Another one from when gevent has put its own locks in place: one of before would stop all greenlets for good
    where a second one waits for it.
    """

    __slots__ = ("__weakref__", "_kind", "_lock")

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """A lock of our own."""
        self._kind = threading.Lock
        self._lock = threading.Lock()

    @property
    def free(self) -> threading.Lock:
        """The lock."""
        if self._kind is not threading.Lock:
            self.renew()
        return self._lock


_known: Final[WeakSet[Renewable]] = WeakSet()


def renew_after_fork(it: Renewable) -> None:
    """Call ``it.renew()`` in every process that is forked from this one, as long as *it* lives."""
    _known.add(it)


def _renew_all() -> None:
    for it in list(_known):
        it.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
