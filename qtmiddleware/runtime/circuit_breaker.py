"""Stop calling a service for a while after several failures in a row (circuit breaker).

While the breaker is open, `GovernedModel` raises `ModelError` ``circuit_open``. Source: Nygard,
Release It!, 2007.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Final

from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.logs import get_logger

logger: Final = get_logger("qtmiddleware")


class BreakerState(StrEnum):
    """The state of a circuit breaker. ``HALF_OPEN`` allows one call at a time, the probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(eq=False, slots=True)
class Attempt:
    """One call that a `Breaker` allowed."""

    breaker: Breaker
    is_probe: bool
    is_over: bool = False

    def end(self, *, has_failed: bool | None, pause_seconds: float | None = None) -> None:
        """Tell the breaker how the call ended. Only the first report counts.

        *has_failed* is ``None`` if the result is unknown, because the caller stopped waiting. The
        service asked for *pause_seconds* (Retry-After).
        """
        self.breaker.end_attempt(self, has_failed, pause_seconds or 0.0)


class Breaker:
    """A circuit breaker: opens for *open_seconds* after *max_failures* failed calls in a row.

    Then a single call, the probe, tests the service. If *max_failures* is 0, the breaker never
    opens. If the service asks for a pause (Retry-After), the breaker opens for the pause, and no
    probe follows, because the service is working.

    A breaker with a *name* logs a warning when failures open it, and when a probe closes it.
    Thread-safe.
    """

    def __init__(
        self,
        max_failures: int,
        open_seconds: float,
        *,
        clock: Callable[[], float] = monotonic,
        name: str = "",
    ) -> None:
        self.max_failures, self.open_seconds = max_failures, open_seconds
        self._name = name
        self._clock = clock
        self._lock = make_lock()
        self._failures_in_row = 0
        # No call is allowed before this time. After a pause all calls are allowed again, but after
        # too many failures only the probe is.
        self._open_until = float("-inf")
        self._needs_probe = False

    def report(self) -> tuple[BreakerState, int, int, float]:
        """Return the breaker's state and counts, as `health()` shows them."""
        seconds = self.wait_seconds
        state = BreakerState.HALF_OPEN if self._needs_probe else BreakerState.CLOSED
        if seconds:
            state = BreakerState.OPEN
        return state, self._failures_in_row, self.max_failures, seconds

    @property
    def wait_seconds(self) -> float:
        """The number of seconds until the next call is allowed; 0 if a call is allowed now."""
        return max(0.0, self._open_until - self._clock()) if self.max_failures else 0.0

    def begin_attempt(self) -> Attempt | None:
        """Return an `Attempt` if a call is allowed now, else ``None``."""
        with self._lock:
            if self.wait_seconds:
                return None
            if self._needs_probe:
                # Other calls wait for the probe's end, or for as long as after a failure.
                self._open_until = self._clock() + self.open_seconds
            return Attempt(self, self._needs_probe)

    def end_attempt(self, attempt: Attempt, has_failed: bool | None, pause: float) -> None:
        """Learn how *attempt* ended, and log if this opens or closes the breaker."""
        with self._lock:
            change = self._record_end(attempt, has_failed, pause)
        # Logged without the lock, because a log handler may be slow, or may ask the breaker.
        if change and self._name:
            seconds = round(self.wait_seconds, 3)
            note = f" (no calls for {seconds:g} s)" if seconds else ""
            logger.warning(
                "the circuit breaker %s",
                f"{change}: {self._name}{note}",
                event=f"breaker_{change}",
                model=self._name,
                seconds=seconds,
            )

    def _record_end(self, attempt: Attempt, has_failed: bool | None, pause: float) -> str:
        """Return ``opened`` or ``closed`` if the end of *attempt* changes the state."""
        # Two threads may end an attempt: one performs it, the other stops waiting for it. A call
        # that began before the breaker opened says nothing new.
        is_news = not attempt.is_over and attempt.is_probe == self._needs_probe
        if not attempt.is_probe and self.wait_seconds:
            is_news = False
        attempt.is_over = True
        if not is_news or not self.max_failures:
            return ""
        if attempt.is_probe:
            self._open_until = float("-inf")
        if has_failed is None:
            return ""
        if not has_failed:
            self._failures_in_row = 0
            self._needs_probe = False
            return "closed" if attempt.is_probe else ""
        self._failures_in_row += 1
        if attempt.is_probe or self._failures_in_row >= self.max_failures:
            self._needs_probe = True
            pause = max(self.open_seconds, pause)
        if pause > 0:
            self._open_until = self._clock() + pause
        return "opened" if self._needs_probe and not attempt.is_probe else ""
