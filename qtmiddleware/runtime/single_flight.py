"""Compute a result once for all callers that need it at the same time (single flight)."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any

from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.io import IO
from qtmiddleware.types import Deadline


class Flight:
    """A computation that one caller, the leader, performs for all callers that need its result.

    *result* becomes ``None`` if the leader gave up. Then a follower may become the leader.
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

    def join_flight(self, key: Hashable, deadline: float) -> tuple[Flight, bool]:
        """Return the computation for *key*, and whether the caller leads it.

        A leader computes the result and then calls `land_flight`. The caller leads if nobody
        computes the result yet, or if the leader is overdue, for example because its event loop was
        stopped.
        """
        with self._lock:
            flight = self._by_key.get(key)
            if flight is not None and monotonic() < flight.deadline:
                return flight, False
            flight = self._by_key[key] = Flight(deadline)
            return flight, True

    def land_flight(self, key: Hashable, flight: Flight, result: Any) -> None:
        """End *flight* and give *result* to its followers; ``None`` if the leader gave up."""
        with self._lock:
            # If this flight was overdue, another caller may lead a new one. The new one stays.
            if self._by_key.get(key) is flight:
                del self._by_key[key]
        flight.result.set_result(result)
