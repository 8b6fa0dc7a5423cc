"""Repeat failed calls to a service, at a rate that all callers share."""

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

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
_TEMPORARY: Final = frozenset(
    {"timeout", "unavailable", "rate_limited", "circuit_open", "overloaded", "over_budget"}
)
# Failures that show that the service is working.
_ANSWERS: Final = frozenset({"refused", "too_long", "empty", "truncated", "unrecorded"})


class Pace:
    """Runs up to *concurrency* calls at once, and none during a pause.

    `call` repeats calls that fail for a temporary reason (rate limit, outage, budget per minute).
    Such a failure pauses all callers, for as long as the service says, or else for twice as long
    as the last time, from 0.1 to 30 seconds, until an answer comes.

    All calls are stopped after ten minutes without an answer, if the API key is rejected, if a
    budget is used up, or if the first calls all fail. Thread-safe.

    Attributes:
        error: Why all calls were stopped; ``None`` while calls may run.
    """

    def __init__(self, concurrency: int, *, clock: Callable[[], float] = monotonic) -> None:
        self.error: QtMiddlewareError | None = None
        self._limit = concurrency
        self._clock = clock
        self._changed = threading.Condition()
        self._running = self._answers = self._first_failures = 0
        self._failing_since: float | None = None
        self._next_pause = _SHORTEST_PAUSE
        self._resume_at = 0.0

    def call(self, function: Callable[[], T]) -> T:
        """Return the result of *function*. Repeats the call if it fails for a temporary reason.

        Raises `ModelError` ``cancelled`` if all calls were stopped, or the error of the last try.
        """
        tries, answers = 0, -1
        while True:
            self._begin()
            try:
                value = function()
            except ModelError as error:
                # While nothing is answered, the failure is the service's, not this call's.
                if error.reason in ("timeout", "unavailable") and self._answers > answers:
                    tries, answers = tries + 1, self._answers
                if not self._should_repeat(error) or tries >= TRIES:
                    raise
            else:
                self._record_answer()
                return value
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def stop(self, error: QtMiddlewareError) -> None:
        """Stop all calls: waiting callers get a `ModelError`, and no new call begins."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def _begin(self) -> None:
        """Wait until one more call may begin."""
        with self._changed:
            while self.error is None:
                seconds = self._resume_at - self._clock()
                if seconds <= 0 and self._running < self._limit:
                    self._running += 1
                    return
                self._changed.wait(seconds if seconds > 0 else None)
        raise ModelError("cancelled", "all calls were stopped")

    def _should_repeat(self, error: ModelError) -> bool:
        """Return whether to repeat a call that failed with *error*, and pause all callers if so."""
        if error.reason in _ANSWERS:
            self._record_answer()
            return False
        with self._changed:
            # A repeated call would fail again, for example if the key is wrong.
            if error.reason not in _TEMPORARY:
                self._first_failures += not self._answers
                if error.reason == "unauthorized" or self._first_failures >= MAX_FIRST_FAILURES:
                    self.stop(error)
                return False
            now = self._clock()
            pause = error.retry_after
            if error.reason == "over_budget" and pause is None:
                # A call that is still running may cost less than was reserved for it.
                if self._running == 1:
                    self.stop(error)
                pause = _SHORTEST_PAUSE
            elif self._failing_since is None:
                self._failing_since = now
            elif now - self._failing_since >= PATIENCE:
                self.stop(error)
            if pause is None:
                pause = self._next_pause
                # Calls that fail together lengthen the pause only once.
                if now >= self._resume_at:
                    self._next_pause = min(_LONGEST_PAUSE, 2 * pause)
            self._resume_at = max(self._resume_at, now + pause)
        return True

    def _record_answer(self) -> None:
        with self._changed:
            self._answers += 1
            self._failing_since, self._next_pause = None, _SHORTEST_PAUSE
