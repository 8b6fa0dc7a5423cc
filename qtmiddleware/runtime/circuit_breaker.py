"""A circuit breaker: what fails again and again is left alone for a while (Nygard, Release It!, 2007).

Where no call is let through, `GovernedModel` raises `ModelError` with the reason ``circuit_open``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, StrEnum
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final

from qtmiddleware.runtime.forking import renew_after_fork
from qtmiddleware.runtime.logs import Outage, get_logger, times
from qtmiddleware.types import NEVER

logger: Final = get_logger("qtmiddleware")


class BreakerState(StrEnum):
    """``closed`` lets every call through, ``open`` none, ``half_open`` one at a time that tries (the probe)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class _Result(Enum):
    """How a call ended; ``UNKNOWN`` counts as neither, and a probe that ends so makes room for the next."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Attempt:
    """One call that a `Breaker` let through; whoever makes it reports how it ended, of which the first report counts.

    *is_probe* says that it is the one that tries a half-open breaker, *has_time* that being late is a failure.
    """

    __slots__ = ("_breaker", "has_time", "is_over", "is_probe")

    def __init__(self, breaker: Breaker, *, is_probe: bool, has_time: bool) -> None:
        self._breaker = breaker
        self.is_probe = is_probe
        self.has_time = has_time
        self.is_over = False

    def succeed(self) -> None:
        """Report that it answered."""
        self._breaker._report(self, _Result.SUCCESS)

    def fail(self, rest: float | None = None) -> None:
        """Report that it failed; *rest* is for how many seconds the service asked to be left alone."""
        self._breaker._report(self, _Result.FAILURE, rest)

    def time_out(self) -> None:
        """Report that it did not answer in time, which is a failure where it had enough of it."""
        self._breaker._report(self, self.result_if_late)

    def abandon(self) -> None:
        """Report that nobody knows: it was given up for reasons of the caller's."""
        self._breaker._report(self, _Result.UNKNOWN)

    @property
    def result_if_late(self) -> _Result:
        """What being late counts as."""
        return _Result.FAILURE if self.has_time else _Result.UNKNOWN


class Breaker:
    """Opens after *failures* calls in a row that failed, for *seconds*; then one call at a time tries.

    If that one succeeds the breaker closes, if it fails it opens for *seconds* again, and if it was given up the next
    one tries. A call that is still under way when its time is over is late then and there, so one that hangs for ever
    counts too. With 0 *failures* it never opens.
    Where it has a *name*, that it opened and that it closed again are logged, a warning each; the tries between are
    not. Thread-safe; a forked process begins with nothing under way.
    """

    def __init__(
        self, failures: int, seconds: float, *, clock: Callable[[], float] = monotonic, name: str = ""
    ) -> None:
        self._name = name
        self._outage = Outage(clock=clock)
        self._failures = failures
        self._seconds = seconds
        self._clock = clock
        self._failures_in_row = 0
        # The state is derived from this and the clock: closed without it, open before it, half-open from then on.
        self._open_until: float | None = None
        self._changes: list[BreakerState] = []
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the calls under way."""
        self._lock = threading.Lock()
        self._probe: Attempt | None = None
        self._order = count()
        self._under_way: list[tuple[float, int, Attempt]] = []

    def change(self, failures: int, seconds: float) -> None:
        """Set other limits; 0 *failures* close it."""
        with self._lock:
            self._failures, self._seconds = failures, seconds
            if not failures:
                self._open_until = self._probe = None

    def look(self) -> tuple[BreakerState, int, int, float]:
        """The state, how many calls failed in a row, how many may, and in how many seconds one tries again."""
        with self._lock:
            self._end_late()
            seen = self._state, self._failures_in_row, self._failures, self._seconds_open
        self._log_changes()
        return seen

    @property
    def rest(self) -> float:
        """For how many seconds no call is let through; 0 where the next one is."""
        with self._lock:
            self._end_late()
            rest = self._rest
        self._log_changes()
        return rest

    def attempt(self, until: float = NEVER, *, has_time: bool = True) -> Attempt | None:
        """Returns an `Attempt` where a call may be made now, else ``None``.

        *until* is when the call is late (monotonic clock). Where it never *has_time* enough, that it is late says
        nothing; it may still fail.
        """
        attempt = None
        with self._lock:
            self._end_late()
            if not self._rest:
                attempt = Attempt(self, is_probe=self._state is BreakerState.HALF_OPEN, has_time=has_time)
                if attempt.is_probe:
                    self._probe = attempt
                if until != NEVER:
                    heappush(self._under_way, (until, next(self._order), attempt))
        self._log_changes()
        return attempt

    @property
    def _state(self) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._open_until else BreakerState.HALF_OPEN

    @property
    def _seconds_open(self) -> float:
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    @property
    def _rest(self) -> float:
        # However long a probe takes; its own end decides.
        return self._seconds_open or (1e-3 if self._probe is not None else 0.0)

    def _end_late(self) -> None:
        now = self._clock()
        while self._under_way and (self._under_way[0][0] <= now or self._under_way[0][2].is_over):
            attempt = heappop(self._under_way)[2]
            self._end(attempt, attempt.result_if_late)

    def _report(self, attempt: Attempt, result: _Result, rest: float | None = None) -> None:
        with self._lock:
            self._end(attempt, result, rest)
        self._log_changes()

    def _end(self, attempt: Attempt, result: _Result, rest: float | None = None) -> None:
        if attempt.is_over:
            return
        attempt.is_over = True
        if attempt is self._probe:
            self._probe = None
        elif self._open_until is not None:
            # It began before the breaker opened: what it says is known already.
            return
        if result is _Result.SUCCESS:
            if self._open_until is not None:
                self._changes.append(BreakerState.CLOSED)
            self._failures_in_row, self._open_until = 0, None
        elif result is _Result.FAILURE:
            self._failures_in_row += 1
            if self._failures and (rest or attempt.is_probe or self._failures_in_row >= self._failures):
                self._open_until = self._clock() + max(self._seconds, rest or 0.0)
                self._changes.append(BreakerState.OPEN)

    def _log_changes(self) -> None:
        """Log what changed; not under the lock, as nobody knows how long a handler takes."""
        if self._changes:
            with self._lock:
                changes, self._changes = self._changes, []
            for state in changes if self._name else ():
                self._log(state)

    def _log(self, state: BreakerState) -> None:
        if state is BreakerState.CLOSED:
            if (number := self._outage.record_success()) is not None:
                logger.warning(
                    "the circuit breaker of %s closed again; it had opened %s",
                    self._name,
                    times(number),
                    event="breaker_closed",
                    model=self._name,
                    count=number,
                )
        elif (number := self._outage.record_failure()) is not None:
            more = f" (it opened {times(number - 1)} before)" if number > 1 else ""
            seconds = round(self.rest, 3)
            logger.warning(
                "the circuit breaker of %s opened: it is left alone for %g s, then tried again%s",
                self._name,
                seconds,
                more,
                event="breaker_opened",
                model=self._name,
                seconds=seconds,
                count=number,
            )
