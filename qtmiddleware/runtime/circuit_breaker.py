"""A circuit breaker: a service that fails again and again is not asked for a while (Nygard, Release It!, 2007).

While the breaker lets no call through, `GovernedModel` raises `ModelError` with the reason
``circuit_open``.
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

PROBE_REST: Final = 1e-3
"""The rest in seconds while a probe is under way: however long it takes, its own end decides."""


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

    *is_probe* says that it is the one that tries a half-open breaker, *has_time* that being late is
    a failure. *pauses* is how often the service had asked for a pause when the call began.
    """

    __slots__ = ("_breaker", "has_time", "is_over", "is_probe", "pauses")

    def __init__(self, breaker: Breaker, *, is_probe: bool, has_time: bool, pauses: int) -> None:
        self._breaker = breaker
        self.pauses = pauses
        self.is_probe = is_probe
        self.has_time = has_time
        self.is_over = False

    def succeed(self) -> None:
        """Report that it answered."""
        self._breaker._report(self, _Result.SUCCESS)

    def fail(self, rest: float | None = None) -> None:
        """Report that the call failed; *rest* is the pause in seconds that the service asked for (Retry-After)."""
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

    If that one succeeds the breaker closes, if it fails it opens for *seconds* again, and if it was
    given up the next one tries. A call that is still under way when its time is over is late then
    and there, so one that hangs for ever counts too. With 0 *failures* it never opens.

    A failure for which the service names a pause (Retry-After) opens the breaker for that pause,
    and no longer unless it is the last of *failures*. A service that names a pause is there, so
    after the pause nobody has to try first. All calls that were under way when a pause began count
    as one failure if they are told to wait as well.

    Where it has a *name*, that it opened and that it closed again are logged, a warning each; the
    tries between are not. Thread-safe; a forked process begins with nothing under way.
    """

    def __init__(
        self,
        failures: int,
        seconds: float,
        *,
        clock: Callable[[], float] = monotonic,
        name: str = "",
    ) -> None:
        self._name = name
        self._outage = Outage(clock=clock)
        self._failures = failures
        self._seconds = seconds
        self._clock = clock
        self._failures_in_row = 0
        # The state is derived from this and the clock: closed without it, open before it, half-open
        # from then on.
        self._open_until: float | None = None
        # The pause that the service asked for is held beside that state: it opens the breaker and
        # leaves no probe.
        self._pause_until = float("-inf")
        self._pauses = 0
        self._is_told = False
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
                self._pause_until = float("-inf")

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

        *until* is when the call is late (monotonic clock). Where it never *has_time* enough, that
        it is late says nothing; it may still fail.
        """
        attempt = None
        with self._lock:
            self._end_late()
            if not self._rest:
                # Its rest is over: a breaker that opened is half open now.
                is_probe = self._open_until is not None
                attempt = Attempt(self, is_probe=is_probe, has_time=has_time, pauses=self._pauses)
                if is_probe:
                    self._probe = attempt
                if until != NEVER:
                    heappush(self._under_way, (until, next(self._order), attempt))
        self._log_changes()
        return attempt

    @property
    def _state(self) -> BreakerState:
        if self._seconds_open:
            return BreakerState.OPEN
        return BreakerState.CLOSED if self._open_until is None else BreakerState.HALF_OPEN

    @property
    def _seconds_open(self) -> float:
        until = (
            self._pause_until
            if self._open_until is None
            else max(self._open_until, self._pause_until)
        )
        return max(0.0, until - self._clock())

    @property
    def _rest(self) -> float:
        return self._seconds_open or (PROBE_REST if self._probe is not None else 0.0)

    def _end_late(self) -> None:
        now = self._clock()
        while self._under_way and (self._under_way[0][0] <= now or self._under_way[0][2].is_over):
            attempt = heappop(self._under_way)[2]
            self._end(attempt, attempt.result_if_late)

    def _report(self, attempt: Attempt, result: _Result, rest: float | None = None) -> None:
        if attempt.is_over:
            # It counts once, and what is over stays so.
            return
        with self._lock:
            self._end(attempt, result, rest)
        self._log_changes()

    def _end(self, attempt: Attempt, result: _Result, rest: float | None = None) -> None:
        if attempt.is_over:
            return
        attempt.is_over = True
        asks_pause = bool(self._failures and rest and rest > 0)
        # Of the calls that were under way when the service asked for a pause, one was counted.
        is_known = asks_pause and attempt.pauses != self._pauses
        if rest and asks_pause:
            self._pause(rest)
        if attempt is self._probe:
            self._probe = None
        elif self._open_until is not None or is_known:
            # It began before the breaker opened: what it says is known already.
            return
        if result is _Result.SUCCESS:
            self._failures_in_row, self._open_until = 0, None
            if self._is_told and not self._seconds_open:
                self._is_told = False
                self._changes.append(BreakerState.CLOSED)
        elif result is _Result.FAILURE:
            self._failures_in_row += 1
            if not self._failures:
                return
            is_enough = attempt.is_probe or self._failures_in_row >= self._failures
            if is_enough:
                self._open_until = self._clock() + self._seconds
            if is_enough or asks_pause:
                self._is_told = True
                self._changes.append(BreakerState.OPEN)

    def _pause(self, rest: float) -> None:
        now = self._clock()
        self._pauses += now >= self._pause_until
        self._pause_until = max(self._pause_until, now + rest)

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
                    "the circuit breaker of %s is closed again: calls work; it had opened %s",
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
                "the circuit breaker of %s opened: no calls for %g s, then one test call%s",
                self._name,
                seconds,
                more,
                event="breaker_opened",
                model=self._name,
                seconds=seconds,
                count=number,
            )
