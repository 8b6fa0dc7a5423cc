"""Closing what is being replaced once no call is inside it any more (connection draining)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtmiddleware.forking import ForkLock


class Draining:
    """Counts the calls inside something: ``with self._draining:``; after `retire`, *close* follows the last of them.

    A call that begins later is let in, and *close* follows it again: what is closed must be able to open anew. *close*
    must wait for nothing, since it holds up whoever comes. Safe with many threads and after a fork.
    """

    __slots__ = ("_calls", "_close", "_is_retired", "_lock")

    def __init__(self, close: Callable[[], None]) -> None:
        self._close: Final = close
        self._calls = 0
        self._is_retired = False
        self._lock = ForkLock()

    def __enter__(self) -> None:
        with self._lock.free:
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock.free:
            self._calls -= 1
            self._close_if_left()

    def retire(self) -> None:
        """Close it as soon as no call is inside: now, where there is none."""
        with self._lock.free:
            self._is_retired = True
            self._close_if_left()

    def _close_if_left(self) -> None:
        if self._is_retired and not self._calls:
            self._close()
