"""Closing what is being replaced once no call is inside it any more (connection draining)."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Final

from qtmiddleware.runtime.forking import renew_after_fork


class Draining:
    """Counts the calls inside something: ``with self.in_use:``; after `retire`, *close* follows the last of them.

    A call that begins later is let in, and *close* follows it again: what is closed must be able to open anew. *close*
    must wait for nothing, since it holds up whoever comes. Safe with many threads; a forked process begins without
    calls.
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
        # A generator inside may be thrown away, and so left, by a collection of garbage that begins under the lock.
        self._lock = RLock()

    def __enter__(self) -> None:
        with self._lock:
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            # Less than none would be a call that the parent had begun.
            self._calls = max(0, self._calls - 1)
            self._close_if_left()

    def retire(self) -> None:
        """Close it as soon as no call is inside: now, where there is none."""
        with self._lock:
            self._is_retired = True
            self._close_if_left()

    def _close_if_left(self) -> None:
        if self._is_retired and not self._calls:
            self._close()
