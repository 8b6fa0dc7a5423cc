"""Stop calling a service for a while after several failures in a row (circuit breaker).

While the breaker is open, `GovernedModel` raises `ModelError` ``circuit_open``. Source: Nygard,
Release It!, 2007.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, StrEnum
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final

from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.logs import Outage, format_repetitions, get_logger
from qtmiddleware.types import NEVER

logger: Final = get_logger("qtmiddleware")

PROBE_WAIT_SECONDS: Final = 1e-3
"""The value of `Breaker.wait_seconds` while a probe is running, because its end is unknown."""


class BreakerState(StrEnum):
    """The state of a circuit breaker.

    Attributes:
        CLOSED: All calls are allowed.
        OPEN: No calls are allowed.
        HALF_OPEN: One call at a time is allowed: the probe tests whether the service works again.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class _Result(Enum):
    """How a call ended. If a probe's result is ``UNKNOWN``, the next call is a new probe."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Attempt:
    """One call that a `Breaker` allowed. The caller reports how the call ended.

    Only the first report counts.

    Attributes:
        is_probe: Whether the call tests if a half-open breaker can close.
        has_enough_time: Whether the service has enough time to answer. If not, a late call does not
            count as a failure.
        is_over: Whether the call's end was reported or its deadline has passed.
        pauses: The number of pauses that the service had asked for before the call began.
    """

    __slots__ = ("_breaker", "has_enough_time", "is_over", "is_probe", "pauses")

    def __init__(
        self, breaker: Breaker, *, is_probe: bool, has_enough_time: bool, pauses: int
    ) -> None:
        self._breaker = breaker
        self.pauses = pauses
        self.is_probe = is_probe
        self.has_enough_time = has_enough_time
        self.is_over = False

    def report_success(self) -> None:
        """Report that the service answered."""
        self._breaker._record_result(self, _Result.SUCCESS)

    def report_failure(self, pause_seconds: float | None = None) -> None:
        """Report that the call failed.

        *pause_seconds* is the pause that the service asked for (Retry-After), if any.
        """
        self._breaker._record_result(self, _Result.FAILURE, pause_seconds)

    def report_timeout(self) -> None:
        """Report that the call was late. If *has_enough_time* is true, this counts as a failure."""
        self._breaker._record_result(self, self.result_if_late)

    def report_unknown_result(self) -> None:
        """Report that the result is unknown, because the caller stopped waiting."""
        self._breaker._record_result(self, _Result.UNKNOWN)

    @property
    def result_if_late(self) -> _Result:
        """The result to record if the call is late."""
        return _Result.FAILURE if self.has_enough_time else _Result.UNKNOWN


class Breaker:
    """A circuit breaker: opens for *open_seconds* after *max_failures* failed calls in a row.

    Then a single call, the probe, tests the service. If the probe succeeds, the breaker closes. If
    the probe fails, the breaker opens for *open_seconds* again. If the probe's result is unknown,
    the next call is the probe. A call is late once its deadline has passed, even if the call hangs.
    If *max_failures* is 0, the breaker never opens.

    If the service asks for a pause (Retry-After), the breaker opens for the pause, or for
    *open_seconds* if this is longer and the failure is the last of *max_failures*. No probe follows
    a pause, because a service that asks for a pause is working. If calls that were already
    running when the pause began fail with a request for a pause too, they are not counted again.

    A breaker with a *name* logs a warning when it opens and when it closes, but not for each probe.
    Thread-safe; a forked process begins without running calls.
    """

    def __init__(
        self,
        max_failures: int,
        open_seconds: float,
        *,
        clock: Callable[[], float] = monotonic,
        name: str = "",
    ) -> None:
        self._name = name
        self._outage = Outage(clock=clock)
        self._max_failures = max_failures
        self._open_seconds = open_seconds
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
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget the running calls after a fork, because they belong to the parent process."""
        self._lock = threading.Lock()
        self._probe: Attempt | None = None
        self._order = count()
        self._under_way: list[tuple[float, int, Attempt]] = []

    def change_limits(self, max_failures: int, open_seconds: float) -> None:
        """Set new limits. If *max_failures* is 0, the breaker closes."""
        with self._lock:
            self._max_failures, self._open_seconds = max_failures, open_seconds
            if not max_failures:
                self._open_until = self._probe = None
                self._pause_until = float("-inf")

    def read_state_and_counts(self) -> tuple[BreakerState, int, int, float]:
        """Return the breaker's state and counts, as `Health` shows them.

        Returns:
            state: The state.
            failed calls: The number of failed calls in a row.
            limit: How many failed calls in a row open the breaker; 0 if it never opens.
            seconds: For how many more seconds the breaker stays open.
        """
        with self._lock:
            self._end_overdue_calls()
            report = self._state, self._failures_in_row, self._max_failures, self._remaining_seconds
        self._log_changes()
        return report

    @property
    def wait_seconds(self) -> float:
        """The number of seconds until the next call is allowed; 0 if a call is allowed now."""
        with self._lock:
            self._end_overdue_calls()
            wait_seconds = self._wait_seconds
        self._log_changes()
        return wait_seconds

    def begin_attempt(
        self, deadline: float = NEVER, *, has_enough_time: bool = True
    ) -> Attempt | None:
        """Return an `Attempt` if a call is allowed now, else ``None``.

        Args:
            deadline: The call's deadline, in seconds on the monotonic clock.
            has_enough_time: Whether *deadline* leaves the service enough time to answer. If not, a
                late call does not count as a failure. An error still does.
        """
        attempt = None
        with self._lock:
            self._end_overdue_calls()
            if not self._wait_seconds:
                # The wait is over, so a breaker that had opened is half-open now.
                is_probe = self._open_until is not None
                attempt = Attempt(
                    self, is_probe=is_probe, has_enough_time=has_enough_time, pauses=self._pauses
                )
                if is_probe:
                    self._probe = attempt
                if deadline != NEVER:
                    heappush(self._under_way, (deadline, next(self._order), attempt))
        self._log_changes()
        return attempt

    @property
    def _state(self) -> BreakerState:
        if self._remaining_seconds:
            return BreakerState.OPEN
        return BreakerState.CLOSED if self._open_until is None else BreakerState.HALF_OPEN

    @property
    def _remaining_seconds(self) -> float:
        until = (
            self._pause_until
            if self._open_until is None
            else max(self._open_until, self._pause_until)
        )
        return max(0.0, until - self._clock())

    @property
    def _wait_seconds(self) -> float:
        return self._remaining_seconds or (PROBE_WAIT_SECONDS if self._probe is not None else 0.0)

    def _end_overdue_calls(self) -> None:
        """Record the calls whose deadline has passed as late."""
        now = self._clock()
        # The call that is late first is on top of the heap. Calls that have ended stay in the heap
        # until they reach the top.
        while self._under_way and (self._under_way[0][0] <= now or self._under_way[0][2].is_over):
            attempt = heappop(self._under_way)[2]
            self._end_attempt(attempt, attempt.result_if_late)

    def _record_result(
        self, attempt: Attempt, result: _Result, pause_seconds: float | None = None
    ) -> None:
        if attempt.is_over:
            # Checked without the lock, since an attempt that is over stays over.
            return
        with self._lock:
            self._end_attempt(attempt, result, pause_seconds)
        self._log_changes()

    def _end_attempt(
        self, attempt: Attempt, result: _Result, pause_seconds: float | None = None
    ) -> None:
        # Another thread may have recorded the result since the check without the lock.
        if attempt.is_over:
            return
        attempt.is_over = True
        asks_pause = bool(self._max_failures and pause_seconds and pause_seconds > 0)
        # Another call that began before the same pause has already counted as the failure.
        is_known = asks_pause and attempt.pauses != self._pauses
        if pause_seconds and asks_pause:
            self._start_pause(pause_seconds)
        if attempt is self._probe:
            self._probe = None
        elif self._open_until is not None or is_known:
            # The call began before the breaker opened, so its result is not news.
            return
        if result is _Result.SUCCESS:
            self._failures_in_row, self._open_until = 0, None
            if self._is_open_logged and not self._remaining_seconds:
                self._is_open_logged = False
                self._changes.append(BreakerState.CLOSED)
        elif result is _Result.FAILURE:
            self._failures_in_row += 1
            if not self._max_failures:
                return
            is_enough = attempt.is_probe or self._failures_in_row >= self._max_failures
            if is_enough:
                self._open_until = self._clock() + self._open_seconds
            if is_enough or asks_pause:
                self._is_open_logged = True
                self._changes.append(BreakerState.OPEN)

    def _start_pause(self, pause_seconds: float) -> None:
        now = self._clock()
        self._pauses += now >= self._pause_until
        self._pause_until = max(self._pause_until, now + pause_seconds)

    def _log_changes(self) -> None:
        """Log the changes of state, without holding the lock, because a log handler may be slow."""
        if self._changes:
            with self._lock:
                changes, self._changes = self._changes, []
            for state in changes if self._name else ():
                self._log_state_change(state)

    def _log_state_change(self, state: BreakerState) -> None:
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
            seconds = round(self.wait_seconds, 3)
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
