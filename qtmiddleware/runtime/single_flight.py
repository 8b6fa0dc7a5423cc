"""Single flight: what several callers want at the same time is done by one of them for all."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from contextvars import ContextVar
from enum import Enum
from time import monotonic
from typing import Any, Final

from qtmiddleware.runtime.forking import renew_after_fork


class Flight:
    """One piece of work under way, whose leader is to be done by *until* (monotonic clock).

    *result* is what the followers get: ``None`` where the leader gave up, so that one of them may
    lead.
    """

    __slots__ = ("result", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.result: Future[Any] = Future()
        # A follower that is cancelled must not cancel it for the others.
        self.result.set_running_or_notify_cancel()


class Role(Enum):
    """What `SingleFlight.join` makes of its caller.

    ``LEADER`` does the work and calls `SingleFlight.land`. ``FOLLOWER`` waits for the leader's
    result. ``NESTED`` is called by the leader itself, as where a wrapped function calls another
    one: it must not wait for its caller.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    NESTED = "nested"


_led: Final[ContextVar[tuple[Flight, ...]]] = ContextVar("led", default=())
"""The flights that the running code leads, and so do the threads and tasks that it starts."""


class SingleFlight:
    """The work under way, by key. Thread-safe, with any number of event loops; a forked process begins with none."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what is under way: only the parent goes on with it."""
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, Flight] = {}

    def join(self, key: Hashable, until: float) -> tuple[Role, Flight]:
        """The flight of *key* and the caller's role in it; a leader must let it land by *until* (monotonic clock).

        A flight whose leader is overdue is not joined: an event loop that was stopped never ends
        what ran in it.
        """
        with self._lock:
            flight = self._by_key.get(key)
            if flight is not None and monotonic() < flight.until:
                return (Role.NESTED if flight in _led.get() else Role.FOLLOWER), flight
            flight = self._by_key[key] = Flight(until)
        _led.set((*_led.get(), flight))
        return Role.LEADER, flight

    def land(self, key: Hashable, flight: Flight, result: Any) -> None:
        """Give the followers of *flight* the *result*, or ``None``; the next one who joins *key* leads a new flight."""
        with self._lock:
            if self._by_key.get(key) is flight:
                del self._by_key[key]
        _led.set(tuple(other for other in _led.get() if other is not flight))
        flight.result.set_result(result)

    def __len__(self) -> int:
        return len(self._by_key)
