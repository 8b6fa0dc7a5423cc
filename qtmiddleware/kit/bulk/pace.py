"""Limit how many calls to a service run at once, and pause all callers during an overload.

Additive increase, multiplicative decrease (Chiu and Jain, 1989). A sign of overload pauses all
callers and halves the number of calls that may run at once. After as many answers as calls may run
at once, the number rises by one. Signs of overload are

- a rate limit, or any failure that comes with a pause (Retry-After),
- five outages or timeouts (`SEVERAL`) without an answer between them.

The service may name the length of the pause. If not, each pause is twice as long as the last, until
the service answers. After a single outage or timeout, only the failed call waits before its retry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

from qtmiddleware.errors import ModelError, QtMiddlewareError

T = TypeVar("T")

PATIENCE: Final = 600.0
"""After this many seconds without an answer, all calls are stopped."""
TRIES: Final = 5
"""The maximum number of tries for a call that fails while other calls are answered."""
MAX_FIRST_FAILURES: Final = 3
"""If this many calls fail before any call is answered, all calls are stopped."""
SEVERAL: Final = 5
"""How many outages and timeouts in a row, without an answer between them, are a sign of overload.

If 5 % of the calls fail by chance, five in a row occur once in three million calls. If half of the
calls fail, five in a row occur within about 60 calls.
"""
_LONE_WAIT: Final = 0.1
_SHORTEST_PAUSE: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0

# Failures whose cause may be the question, chance or the service.
_OUTAGES: Final = frozenset({"timeout", "unavailable"})
_TEMPORARY: Final = _OUTAGES | {"rate_limited", "circuit_open", "overloaded", "over_budget"}
# Failures that show that the service is working.
_ANSWERS: Final = frozenset({"refused", "too_long", "empty", "truncated", "unrecorded"})


class Pace:
    """Runs up to *concurrency* calls at once: fewer during an overload, none during a pause.

    `call` repeats calls that fail for a temporary reason (rate limit, outage, budget per minute).
    All calls are stopped after ten minutes without an answer, if the API key is rejected, if a
    budget is used up, or if the first calls all fail. Thread-safe.

    Attributes:
        limit: The number of calls that may run at once now.
        error: Why all calls were stopped; ``None`` while calls may run.
    """

    def __init__(self, concurrency: int, *, clock: Callable[[], float] = monotonic) -> None:
        self.limit = self._most = concurrency
        self.error: QtMiddlewareError | None = None
        self._clock = clock
        self._changed = threading.Condition()
        self._running = self._settled = 0
        self._answers = self._answers_since_change = self._first_failures = 0
        self._outages_in_row = 0
        self._failing_since: float | None = None
        self._pauses = 0
        self._next_pause = _FIRST_PAUSE
        self._resume_at = 0.0

    def call(self, function: Callable[[], T]) -> T:
        """Return the result of *function*. Repeats the call if it fails for a temporary reason.

        Raises:
            ModelError: ``cancelled`` if all calls were stopped.
            Exception: The error of the last try.
        """
        tries, wait, answers = 0, 0.0, None
        while True:
            pauses, answers_now = self._begin(wait)
            answers = answers_now if answers is None else answers
            try:
                value = function()
            except ModelError as error:
                # While nothing is answered, the failure is the service's, not this call's.
                if error.reason in _OUTAGES and self._answers > answers:
                    tries, answers = tries + 1, self._answers
                next_wait = self._end(error, pauses)
                if next_wait is None or tries >= TRIES:
                    raise
                wait = next_wait
            except BaseException as error:
                self._end(ModelError("failed", type(error).__name__), pauses)
                raise
            else:
                self._end(None, pauses)
                return value

    def stop(self, error: QtMiddlewareError) -> None:
        """Stop all calls: waiting callers get a `ModelError`, and no new call begins."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def _begin(self, min_seconds: float) -> tuple[int, int]:
        """Wait at least *min_seconds*, until one more call may begin.

        Returns the number of pauses and of answered calls so far. Raises `ModelError` ``cancelled``
        if all calls were stopped.
        """
        with self._changed:
            start = self._clock() + min_seconds
            while self.error is None:
                seconds = max(start, self._resume_at) - self._clock()
                if seconds <= 0 and self._running < self.limit:
                    self._running += 1
                    return self._pauses, self._answers
                self._changed.wait(seconds if seconds > 0 else None)
            raise ModelError("cancelled", "all calls were stopped")

    def _end(self, error: ModelError | None, pauses_before: int) -> float | None:
        """Record that a call ended, with *error* unless it succeeded.

        *pauses_before* is the number of pauses before the call began. Returns the number of seconds
        to wait before the call is repeated, or ``None`` if it is not repeated.
        """
        with self._changed:
            self._running -= 1
            self._settled += error is None or error.was_asked
            self._changed.notify_all()
            if error is None or error.reason in _ANSWERS:
                self._record_answer()
                return None
            if error.reason == "over_budget" and error.retry_after is None:
                self._wait_for_budget(error)
                return 0.0
            # A repeated call would fail again, for example if the key is wrong.
            if error.reason not in _TEMPORARY:
                self._first_failures += not self._answers
                if error.reason == "unauthorized" or self._first_failures >= MAX_FIRST_FAILURES:
                    self.stop(error)
                return None
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since >= PATIENCE:
                self.stop(error)
            is_outage = error.reason in _OUTAGES
            self._outages_in_row += is_outage
            # A few timeouts may be chance, so the other callers go on.
            if is_outage and error.retry_after is None and self._outages_in_row < SEVERAL:
                return _LONE_WAIT
            self._pause(error, now, is_news=pauses_before == self._pauses)
            return 0.0

    def _record_answer(self) -> None:
        self._answers += 1
        self._failing_since, self._outages_in_row, self._next_pause = None, 0, _FIRST_PAUSE
        self._answers_since_change += 1
        # The service has answered as many calls as may run at once, so one more may run.
        if self._answers_since_change >= self.limit < self._most:
            self.limit += 1
            self._answers_since_change = 0

    def _wait_for_budget(self, error: ModelError) -> None:
        """Wait until another call has ended, because it may have cost less than was reserved.

        If no other call is running, the budget is used up: all calls are stopped.
        """
        if not self._running:
            self.stop(error)
        settled = self._settled
        self._changed.wait_for(lambda: self.error is not None or self._settled > settled)

    def _pause(self, error: ModelError, now: float, *, is_news: bool) -> None:
        """Pause all callers, and halve the number of calls that may run at once.

        A call that began before the last pause (*is_news* is false) only lengthens the pause, if
        the service names one. If the service was not asked, the number of calls is not halved.
        """
        if not is_news and error.retry_after is None:
            return
        if is_news:
            self._pauses += 1
            if error.was_asked:
                self.limit = max(1, self.limit // 2)
                self._answers_since_change = 0
        seconds = error.retry_after
        if seconds is None:
            seconds, self._next_pause = self._next_pause, min(_LONGEST_PAUSE, 2 * self._next_pause)
        self._resume_at = max(self._resume_at, now + max(seconds, _SHORTEST_PAUSE))
