"""Locks and counts that a forked process begins anew: other threads of its parent may have held them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something that can begin anew in a forked process."""

    def renew(self) -> None:
        """Make new locks, and forget what only the parent is doing."""


_renewables: Final[WeakSet[Renewable]] = WeakSet()


def renew_after_fork(it: Renewable) -> None:
    """Call ``it.renew()`` in every process that is forked from this one, as long as *it* lives."""
    _renewables.add(it)


def _renew_all() -> None:
    for it in list(_renewables):
        it.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class ForkLock:
    """A lock that a forked process finds free, whoever held it in the parent: ``with self._lock.free:``.

    The lock itself and no wrapper of it, because only that cannot be interrupted between being
    taken and being given back. Another one from when gevent has put its own locks in place: one of
    before would stop all greenlets for good where a second one waits for it.
    """

    __slots__ = ("__weakref__", "_kind", "_lock")

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._kind = threading.Lock
        self._lock = threading.Lock()

    def __deepcopy__(self, _: object) -> ForkLock:
        # A copy of what the lock guards is guarded by a lock of its own.
        return ForkLock()

    @property
    def free(self) -> threading.Lock:
        """The lock."""
        if self._kind is not threading.Lock:
            self.renew()
        return self._lock


class Draining:
    """Counts the calls inside a resource: ``with self.in_use:``; after `retire`, *close* follows the last of them.

    Connection draining: a call that begins later is let in, and *close* follows it again, so what
    is closed must be able to open anew. *close* must wait for nothing, since it holds up whoever
    comes. Thread-safe; a forked process begins without calls.
    """

    __slots__ = ("__weakref__", "_calls", "_close", "_is_retired", "_lock")

    def __init__(self, close: Callable[[], None]) -> None:
        self._close: Final = close
        self._is_retired = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the calls: they are the parent's."""
        self._calls = 0
        # A generator inside may be thrown away, and so left, by a collection of garbage that begins
        # under the lock.
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        with self._lock:
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            # Less than none would be a call that the parent had begun.
            self._calls = max(0, self._calls - 1)
            self._close_if_left()

    def retire(self) -> None:
        """Close the resource as soon as no call is inside: now, where there is none."""
        with self._lock:
            self._is_retired = True
            self._close_if_left()

    def _close_if_left(self) -> None:
        if self._is_retired and not self._calls:
            self._close()
