"""A circuit breaker: what fails again and again is left alone for a while (Nygard, Release It!, 2007)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final

from qtmiddleware.runtime.forking import renew_after_fork
from qtmiddleware.runtime.logs import Outage, get_logger, times
from qtmiddleware.types import NEVER

logger: Final = get_logger("qtmiddleware")


class BreakerState(StrEnum):
    """``closed`` lets every call through, ``open`` none, ``half_open`` one that tries."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Attempt:
    """One call that a `Breaker` let through; whoever made it says how it ended, once."""

    __slots__ = ("_breaker", "has_time", "is_over", "is_probe")

    def __init__(self, breaker: Breaker, *, is_probe: bool, has_time: bool) -> None:
        self._breaker = breaker
        self.is_probe = is_probe
        self.has_time = has_time
        self.is_over = False

    def succeeded(self) -> None:
        """It answered."""
        self._breaker._ended(self, failed=False)

    def failed(self, rest: float | None = None) -> None:
        """It did not answer as it should; *rest* is for how many seconds it asked to be left alone."""
        self._breaker._ended(self, failed=True, rest=rest)

    def late(self) -> None:
        """It did not answer in time, which is a failure where it had enough of it."""
        self._breaker._ended(self, failed=self.has_time or None)

    def abandoned(self) -> None:
        """Nobody knows: it was given up for reasons of the caller's."""
        self._breaker._ended(self, failed=None)


class Breaker:
    """Lets calls through until *failures* of them failed in a row, then none for *seconds*, then one that tries.

    If that one succeeds all may call again, otherwise the wait begins anew. A call that is still under way when its
    time is over is late then and there, so one that hangs for ever counts too. 0 *failures* never stop anything.
    Where it has a *name*, that it opened and that it closed again are logged, a warning each; the tries between are
    not. Safe with many threads; a forked process begins with nothing under way.
    """

    def __init__(
        self, failures: int, seconds: float, *, clock: Callable[[], float] = monotonic, name: str = ""
    ) -> None:
        self._name = name
        self._outage = Outage(clock=clock)
        self._changes: list[bool] = []
        self._failures = failures
        self._seconds = seconds
        self._clock = clock
        self._row = 0
        self._open_until: float | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what is under way."""
        self._lock = threading.Lock()
        self._probe: Attempt | None = None
        self._order = count()
        self._under_way: list[tuple[float, int, Attempt]] = []

    def change(self, failures: int, seconds: float) -> None:
        """Go on with other limits; where nothing is stopped any more, from now on."""
        with self._lock:
            self._failures, self._seconds = failures, seconds
            if not failures:
                self._open_until = self._probe = None

    def look(self) -> tuple[BreakerState, int, int, float]:
        """The state, how many calls failed in a row, how many may, and in how many seconds one tries again."""
        with self._lock:
            self._rest()
            if self._open_until is None:
                return BreakerState.CLOSED, self._row, self._failures, 0.0
            left = max(0.0, self._open_until - self._clock())
            state = BreakerState.OPEN if left and self._probe is None else BreakerState.HALF_OPEN
            return state, self._row, self._failures, left

    @property
    def rest(self) -> float:
        """For how many seconds nothing is let through; 0 where the next call may be made."""
        with self._lock:
            left = self._rest()
        self._log_changes()
        return left

    def attempt(self, until: float = NEVER, *, has_time: bool = True) -> Attempt | None:
        """Leave to call, ``None`` where it is to be left alone.

        *until* is when the call is late (monotonic clock). Where it never *has_time* enough, that it is late says
        nothing; it may still fail.
        """
        try:
            return self._begun(until, has_time=has_time)
        finally:
            self._log_changes()

    def _begun(self, until: float, *, has_time: bool) -> Attempt | None:
        with self._lock:
            if self._rest() > 0:
                return None
            attempt = Attempt(self, is_probe=self._open_until is not None, has_time=has_time)
            if attempt.is_probe:
                self._probe = attempt
            if until != NEVER:
                heappush(self._under_way, (until, next(self._order), attempt))
            return attempt

    def _rest(self) -> float:
        now = self._clock()
        while self._under_way and (self._under_way[0][0] <= now or self._under_way[0][2].is_over):
            attempt = heappop(self._under_way)[2]
            self._end(attempt, failed=attempt.has_time or None)
        if self._open_until is None:
            return 0.0
        if self._probe is not None:
            # However long that takes; its own end decides.
            return max(self._open_until - now, 1e-3)
        return max(0.0, self._open_until - now)

    def _ended(self, attempt: Attempt, *, failed: bool | None, rest: float | None = None) -> None:
        with self._lock:
            self._end(attempt, failed=failed, rest=rest)
        self._log_changes()

    def _log_changes(self) -> None:
        """Write what became of us, with the lock given back: nobody knows how long a handler takes."""
        if not self._changes:
            return
        with self._lock:
            changes, self._changes = self._changes, []
        for has_opened in changes if self._name else ():
            count = self._outage.failed() if has_opened else self._outage.worked()
            if count is None:
                continue
            if has_opened:
                more = f" (it opened {times(count - 1)} before)" if count > 1 else ""
                logger.warning(
                    "the circuit breaker of %s opened: it is left alone for %g s, then tried again%s",
                    self._name,
                    round(self.rest, 3),
                    more,
                )
            else:
                logger.warning("the circuit breaker of %s closed again; it had opened %s", self._name, times(count))

    def _end(self, attempt: Attempt, *, failed: bool | None, rest: float | None = None) -> None:
        if attempt.is_over:
            return
        attempt.is_over = True
        if attempt is self._probe:
            self._probe = None
        elif self._open_until is not None:
            # It began before all this: what it says is known already.
            return
        if failed is None:
            return
        if not failed:
            if self._open_until is not None:
                self._changes.append(False)
            self._row, self._open_until = 0, None
            return
        self._row += 1
        if self._failures and (rest or attempt.is_probe or self._row >= self._failures):
            self._open_until = self._clock() + max(self._seconds, rest or 0.0)
            self._changes.append(True)
