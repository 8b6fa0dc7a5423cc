"""Single flight: if several callers need the same result, one of them computes it for all."""

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
    """A computation that one caller, the leader, performs for all callers that need its result.

    Attributes:
        until: When the leader is overdue, in seconds on the monotonic clock.
        result: The future for which the other callers, the followers, wait. The future's result is
            ``None`` if the leader gave up; then a follower may lead.
    """

    __slots__ = ("result", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.result: Future[Any] = Future()
        # A running future cannot be cancelled: a cancelled follower must not cancel it for others.
        self.result.set_running_or_notify_cancel()


class Role(Enum):
    """The caller's role in a shared computation, as returned by `SingleFlight.join`.

    Attributes:
        LEADER: The caller does the work and then calls `SingleFlight.land`.
        FOLLOWER: The caller waits for the leader's result.
        NESTED: The leader itself called this caller, for example because a wrapped function calls
            another wrapped function. The caller must not wait for the leader, which waits for the
            caller.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    NESTED = "nested"


_led: Final[ContextVar[tuple[Flight, ...]]] = ContextVar("led", default=())
"""The flights that the running code leads; inherited by the threads and tasks that it starts."""


class SingleFlight:
    """Lets concurrent callers with the same key share one computation, a `Flight`.

    Thread-safe, with any number of event loops. A forked process begins without flights.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, forget all flights, which only the parent process continues."""
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, Flight] = {}

    def join(self, key: Hashable, until: float) -> tuple[Role, Flight]:
        """Return the caller's role in the `Flight` of *key*, and the `Flight`.

        If there is no flight of *key*, or its leader is overdue, the caller leads a new flight. A
        leader may never finish, for example if its event loop was stopped.

        Args:
            key: Identifies the work.
            until: When the caller is overdue if it leads, in seconds on the monotonic clock.
        """
        with self._lock:
            flight = self._by_key.get(key)
            if flight is not None and monotonic() < flight.until:
                return (Role.NESTED if flight in _led.get() else Role.FOLLOWER), flight
            flight = self._by_key[key] = Flight(until)
        _led.set((*_led.get(), flight))
        return Role.LEADER, flight

    def land(self, key: Hashable, flight: Flight, result: Any) -> None:
        """End *flight* and give *result* to its followers.

        If the leader gave up, *result* is ``None``. The next caller who joins *key* leads a new
        flight.
        """
        with self._lock:
            # If this flight was overdue, somebody else may lead a new one by now, which stays.
            if self._by_key.get(key) is flight:
                del self._by_key[key]
        _led.set(tuple(other for other in _led.get() if other is not flight))
        flight.result.set_result(result)

    def __len__(self) -> int:
        return len(self._by_key)
