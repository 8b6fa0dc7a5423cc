"""Compute a result once for all callers that need it at the same time (single flight)."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum
from time import monotonic
from typing import Any, Final

from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.io import IO
from qtmiddleware.types import Deadline


class Flight:
    """A computation that one caller, the leader, performs for all callers that need its result.

    Attributes:
        deadline: The leader's deadline, in seconds on the monotonic clock.
        result: The future that the other callers, the followers, wait for. Its result is ``None``
            if the leader gave up. Then a follower may become the leader.
    """

    __slots__ = ("deadline", "result")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.result: Future[Any] = Future()

    async def wait(self, io: IO, deadline: Deadline) -> Any:
        """Return the leader's result; ``None`` if the leader gave up or is not done in time."""
        mailbox = io.make_mailbox()
        self.result.add_done_callback(lambda result: mailbox.put(result.result()))
        with suppress(TimeoutError):
            return await mailbox.get(deadline)
        return None


class Role(Enum):
    """The caller's role in a shared computation, as returned by `SingleFlight.join_flight`.

    Attributes:
        LEADER: The caller computes the result and then calls `SingleFlight.land_flight`.
        FOLLOWER: The caller waits for the leader's result.
        NESTED: The caller runs inside the leader's own call, for example because a wrapped function
            calls another wrapped function. The caller must not wait for the leader, because
            the leader waits for the caller.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    NESTED = "nested"


_led: Final[ContextVar[tuple[Flight, ...]]] = ContextVar("led", default=())
"""The flights that the running code leads. Threads and tasks that it starts inherit them."""


class SingleFlight:
    """Lets concurrent callers with the same key share one computation, a `Flight`.

    Thread-safe. The callers may use different event loops. A forked process begins without flights.
    """

    def __init__(self) -> None:
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget all flights after a fork, because only the parent process continues them."""
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, Flight] = {}

    def join_flight(self, key: Hashable, deadline: float) -> tuple[Role, Flight]:
        """Return the caller's role in the computation for *key*, and the computation.

        The caller becomes the leader if nobody computes the result yet or the leader is overdue.
        An overdue leader may never finish, for example because its event loop was stopped.

        Args:
            key: Identifies the result.
            deadline: The caller's deadline as a leader, in seconds on the monotonic clock.
        """
        with self._lock:
            flight = self._by_key.get(key)
            if flight is not None and monotonic() < flight.deadline:
                return (Role.NESTED if flight in _led.get() else Role.FOLLOWER), flight
            flight = self._by_key[key] = Flight(deadline)
        _led.set((*_led.get(), flight))
        return Role.LEADER, flight

    def land_flight(self, key: Hashable, flight: Flight, result: Any) -> None:
        """End *flight* and give *result* to its followers.

        *result* is ``None`` if the leader gave up. The next caller of `join_flight` with
        *key* leads a new flight.
        """
        with self._lock:
            # If this flight was overdue, another caller may lead a new one. The new one stays.
            if self._by_key.get(key) is flight:
                del self._by_key[key]
        _led.set(tuple(other for other in _led.get() if other is not flight))
        flight.result.set_result(result)

    def __len__(self) -> int:
        return len(self._by_key)
