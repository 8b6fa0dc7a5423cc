"""Circuit breaker: stop calling a service for a while after several failures in a row.

While the breaker lets no call through, `GovernedModel` raises `ModelError` with the reason
``circuit_open``. Source: Nygard, Release It!, 2007.
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
from qtmiddleware.runtime.logs import Outage, format_repetitions, get_logger
from qtmiddleware.types import NEVER

logger: Final = get_logger("qtmiddleware")

PROBE_REST: Final = 1e-3
"""How many seconds `Breaker.rest` names while a probe is under way, whose end is not known."""


class BreakerState(StrEnum):
    """Which calls a breaker lets through.

    Attributes:
        CLOSED: Every call.
        OPEN: No call.
        HALF_OPEN: One call at a time, the probe, which tests whether the service works again.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class _Result(Enum):
    """How a call ended. If the result of a probe is ``UNKNOWN``, the next call is the new probe."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Attempt:
    """One call that a `Breaker` let through; the caller reports how the call ended.

    Only the first report counts.

    Attributes:
        is_probe: Whether the call tests whether a half-open breaker may close.
        has_time: Whether a late call counts as a failure.
        is_over: Whether the caller reported how the call ended, or the call is late.
        pauses: How many pauses the service had asked for when the call began.
    """

    __slots__ = ("_breaker", "has_time", "is_over", "is_probe", "pauses")

    def __init__(self, breaker: Breaker, *, is_probe: bool, has_time: bool, pauses: int) -> None:
        self._breaker = breaker
        self.pauses = pauses
        self.is_probe = is_probe
        self.has_time = has_time
        self.is_over = False

    def succeed(self) -> None:
        """Report that the service answered."""
        self._breaker._report(self, _Result.SUCCESS)

    def fail(self, rest: float | None = None) -> None:
        """Report that the call failed.

        If the service asked for a pause (Retry-After), *rest* is the pause in seconds.
        """
        self._breaker._report(self, _Result.FAILURE, rest)

    def time_out(self) -> None:
        """Report that no answer came in time; this is a failure only if *has_time* is true."""
        self._breaker._report(self, self.result_if_late)

    def abandon(self) -> None:
        """Report that the result is unknown, because the caller stopped waiting."""
        self._breaker._report(self, _Result.UNKNOWN)

    @property
    def result_if_late(self) -> _Result:
        """The result that is recorded if the call is late."""
        return _Result.FAILURE if self.has_time else _Result.UNKNOWN


class Breaker:
    """Opens for *seconds* after *failures* failed calls in a row; then a probe tests the service.

    The probe is a single call. If it succeeds, the breaker closes. If it fails, the breaker opens
    for *seconds* again. If it is abandoned, the next call is the probe. A call that is still
    running at its deadline counts as late at once, so calls that hang forever count too. If
    *failures* is 0, the breaker never opens.

    If a failure names a pause (Retry-After), the breaker opens for the length of the pause. It
    opens for longer only if this failure completes *failures* failed calls in a row. No probe
    follows a pause, because a service that names a pause is working. All calls that were running
    when a pause began count as one failure, even if the service asks each of them to wait.

    A breaker with a *name* logs a warning when it opens and when it closes again, but not for each
    probe. Thread-safe; a forked process begins without running calls.
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
        # The state follows from this time and the clock: `None` is closed; before this time the
        # breaker is open, and from then on half-open.
        self._open_until: float | None = None
        # The end of the pause that the service asked for. It is separate because a pause opens the
        # breaker without a probe afterwards.
        self._pause_until = float("-inf")
        self._pauses = 0
        self._is_open_logged = False
        self._changes: list[BreakerState] = []
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, forget the running calls, which belong to the parent process."""
        self._lock = threading.Lock()
        self._probe: Attempt | None = None
        self._order = count()
        self._under_way: list[tuple[float, int, Attempt]] = []

    def change(self, failures: int, seconds: float) -> None:
        """Set new limits; if *failures* is 0, the breaker closes."""
        with self._lock:
            self._failures, self._seconds = failures, seconds
            if not failures:
                self._open_until = self._probe = None
                self._pause_until = float("-inf")

    def read_state(self) -> tuple[BreakerState, int, int, float]:
        """Return the breaker's state and counts, as `Health` shows them.

        Returns:
            state: The state.
            failed calls: The number of failed calls in a row.
            limit: How many failed calls in a row open the breaker; 0 if it never opens.
            seconds: How many seconds the breaker stays open.
        """
        with self._lock:
            self._end_overdue_calls()
            report = self._state, self._failures_in_row, self._failures, self._seconds_open
        self._log_changes()
        return report

    @property
    def rest(self) -> float:
        """The number of seconds until a call may be made; 0 if a call may be made now."""
        with self._lock:
            self._end_overdue_calls()
            rest = self._rest
        self._log_changes()
        return rest

    def begin_attempt(self, until: float = NEVER, *, has_time: bool = True) -> Attempt | None:
        """Return an `Attempt` if a call may be made now, else ``None``.

        Args:
            until: The call's deadline, in seconds on the monotonic clock.
            has_time: Whether a late call counts as a failure. Pass false if *until* leaves the
                service too little time to answer; an error of the call still counts as a failure.
        """
        attempt = None
        with self._lock:
            self._end_overdue_calls()
            if not self._rest:
                # The rest is over, so a breaker that had opened is half-open now.
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

    def _end_overdue_calls(self) -> None:
        """End the running calls whose deadline has passed."""
        now = self._clock()
        # The call that is late first is on top of the heap. Calls that have ended stay in the heap
        # until they reach the top.
        while self._under_way and (self._under_way[0][0] <= now or self._under_way[0][2].is_over):
            attempt = heappop(self._under_way)[2]
            self._end(attempt, attempt.result_if_late)

    def _report(self, attempt: Attempt, result: _Result, rest: float | None = None) -> None:
        if attempt.is_over:
            # Checked without the lock, since an attempt that is over stays over.
            return
        with self._lock:
            self._end(attempt, result, rest)
        self._log_changes()

    def _end(self, attempt: Attempt, result: _Result, rest: float | None = None) -> None:
        if attempt.is_over:
            return
        attempt.is_over = True
        asks_pause = bool(self._failures and rest and rest > 0)
        # Another call of those under way was told of the pause first, and counted as the failure.
        is_known = asks_pause and attempt.pauses != self._pauses
        if rest and asks_pause:
            self._pause(rest)
        if attempt is self._probe:
            self._probe = None
        elif self._open_until is not None or is_known:
            # The call began before the breaker opened, so its result is not news.
            return
        if result is _Result.SUCCESS:
            self._failures_in_row, self._open_until = 0, None
            if self._is_open_logged and not self._seconds_open:
                self._is_open_logged = False
                self._changes.append(BreakerState.CLOSED)
        elif result is _Result.FAILURE:
            self._failures_in_row += 1
            if not self._failures:
                return
            is_enough = attempt.is_probe or self._failures_in_row >= self._failures
            if is_enough:
                self._open_until = self._clock() + self._seconds
            if is_enough or asks_pause:
                self._is_open_logged = True
                self._changes.append(BreakerState.OPEN)

    def _pause(self, rest: float) -> None:
        now = self._clock()
        self._pauses += now >= self._pause_until
        self._pause_until = max(self._pause_until, now + rest)

    def _log_changes(self) -> None:
        """Log the changes of state without holding the lock, because a log handler may be slow."""
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
                    format_repetitions(number),
                    event="breaker_closed",
                    model=self._name,
                    count=number,
                )
        elif (number := self._outage.record_failure()) is not None:
            more = f" (it opened {format_repetitions(number - 1)} before)" if number > 1 else ""
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
