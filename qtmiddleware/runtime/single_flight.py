"""Single flight: if several callers want the same thing, one of them makes it for all."""

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
    """One piece of work under way, which its leader must finish by *until* (monotonic clock).

    Attributes:
        until: When the leader is overdue, in seconds on the monotonic clock.
        result: What the followers get; ``None`` if the leader gave up, so that a follower may lead.
    """

    __slots__ = ("result", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.result: Future[Any] = Future()
        # A running future cannot be cancelled: a cancelled follower must not cancel it for others.
        self.result.set_running_or_notify_cancel()


class Role(Enum):
    """The caller's role in a flight, as `SingleFlight.join` returns it.

    Attributes:
        LEADER: Does the work and calls `SingleFlight.land`.
        FOLLOWER: Waits for the leader's result.
        NESTED: Is called by the leader itself, such as when a wrapped function calls another one.
            It must not wait for the leader, which waits for it.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    NESTED = "nested"


_led: Final[ContextVar[tuple[Flight, ...]]] = ContextVar("led", default=())
"""The flights that the running code leads; inherited by the threads and tasks that it starts."""


class SingleFlight:
    """The work under way, by key.

    Thread-safe, with any number of event loops. A forked process begins with no work.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the work under way: only the parent process continues it."""
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, Flight] = {}

    def join(self, key: Hashable, until: float) -> tuple[Role, Flight]:
        """Return the caller's role in the flight of *key*, and the flight.

        If nobody leads a flight of *key*, or its leader is overdue, the caller leads a new one. (A
        leader may never finish, such as when its event loop was stopped.)

        Args:
            key: What the callers want.
            until: By when the caller will let the flight land if it leads, on the monotonic clock.
        """
        with self._lock:
            flight = self._by_key.get(key)
            if flight is not None and monotonic() < flight.until:
                return (Role.NESTED if flight in _led.get() else Role.FOLLOWER), flight
            flight = self._by_key[key] = Flight(until)
        _led.set((*_led.get(), flight))
        return Role.LEADER, flight

    def land(self, key: Hashable, flight: Flight, result: Any) -> None:
        """Give *result*, or ``None``, to the followers of *flight*, and end it.

        The next caller who joins *key* leads a new flight.
        """
        with self._lock:
            # If this flight was overdue, somebody else may lead a new one by now, which stays.
            if self._by_key.get(key) is flight:
                del self._by_key[key]
        _led.set(tuple(other for other in _led.get() if other is not flight))
        flight.result.set_result(result)

    def __len__(self) -> int:
        return len(self._by_key)
