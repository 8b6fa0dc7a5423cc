"""Limit how many calls to a service run at once, and pause all callers during an overload.

Additive increase, multiplicative decrease (Chiu and Jain, 1989). A sign of overload pauses all
callers and halves the number of calls that may run at once. After as many answers as calls may run
at once, the number rises by one. Signs of overload are

- a rate limit, or any failure that comes with a pause (Retry-After),
- five outages or timeouts (`SEVERAL`) without an answer between them.

A sign is ignored if its call began before the last pause. The service may name the length of the
pause. If not, each pause is twice as long as the last, until the service answers. After a single
outage or timeout, only the failed call waits before its retry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
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
_SHORTEST_PAUSE: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_FIRST_WAIT: Final = 0.1

# Failures whose cause may be the question, chance or the service.
_CALL_OR_SERVICE: Final = frozenset({"timeout", "unavailable"})
_TEMPORARY: Final = _CALL_OR_SERVICE | {"rate_limited", "circuit_open", "overloaded", "over_budget"}
# Failures that show that the service is working.
_SERVICE_WORKS: Final = frozenset({"refused", "too_long", "empty", "truncated", "unrecorded"})


class _Failure(Enum):
    """What to do after a failed call.

    Attributes:
        FINAL: Raise the error.
        SHARED: Pause all callers, then repeat the call.
        LONE: Pause only this caller, then repeat the call.
    """

    FINAL = "final"
    SHARED = "shared"
    LONE = "lone"


class Pace:
    """Runs up to *concurrency* calls at once: fewer during an overload, none during a pause.

    `call_with_retries` repeats calls that fail for a temporary reason (rate limit, outage, open
    circuit breaker, budget per minute). All calls are stopped after *patience* seconds without an
    answer, if the API key is rejected, if a budget is used up, or if the first calls all fail.
    Thread-safe.

    Attributes:
        error: Why all calls were stopped; ``None`` while calls may run.
    """

    def __init__(
        self,
        concurrency: int,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.error: QtMiddlewareError | None = None
        self._most = concurrency
        self._patience = patience
        self._clock = clock
        self._changed = threading.Condition()
        self._limit = concurrency
        self._under_way = 0
        self._resume_at = 0.0
        self._failing_since: float | None = None
        # How often all callers were paused. If a call began before the last pause, its failure is
        # not news.
        self._episode = 0
        self._pauses = self._failures_in_row = 0
        self._answers = self._answers_since_change = 0
        self._settled = self._first_failures = 0

    @property
    def limit(self) -> int:
        """The number of calls that may run at once now."""
        return self._limit

    def call_with_retries(self, call: Callable[[], T]) -> T:
        """Return the result of *call*. Repeats the call if it fails for a temporary reason.

        Raises:
            ModelError: ``cancelled`` if all calls were stopped.
            Exception: The error of the last try.
        """
        tries, lone_failures, wait = 0, 0, 0.0
        answers: int | None = None
        while True:
            episode, answers_now = self._wait_and_read_counts(wait)
            answers = answers_now if answers is None else answers
            try:
                value = call()
            except ModelError as error:
                if error.reason in _CALL_OR_SERVICE and self._answers > answers:
                    # Other calls were answered since the last try. While nothing is answered, the
                    # failure is the service's, not this call's.
                    tries, answers = tries + 1, self._answers
                failure = self._handle_failure(error, episode)
                if failure is _Failure.FINAL or tries >= TRIES:
                    raise
                wait = 0.0
                if failure is _Failure.LONE:
                    wait = _FIRST_WAIT * 2.0 ** min(lone_failures, TRIES)
                    lone_failures += 1
            except BaseException as error:
                self._record_final_result(
                    ModelError("failed", f"the language model raised {type(error).__name__}")
                )
                raise
            else:
                self._record_final_result(None)
                return value

    def stop_all_calls(self, error: QtMiddlewareError | None = None) -> None:
        """Stop all calls: waiting callers get a `ModelError`, and no new call begins."""
        with self._changed:
            self._stop_calls(error or ModelError("cancelled", "stopped"))

    def _wait_and_read_counts(self, min_seconds: float) -> tuple[int, int]:
        """Wait at least *min_seconds*, until one more call may begin, and return two counts.

        Returns:
            episode: The number of pauses so far.
            answers: The number of answered calls so far.

        Raises:
            ModelError: ``cancelled`` if all calls were stopped.
        """
        with self._changed:
            start = self._clock() + min_seconds
            while self.error is None:
                pause = max(start, self._resume_at) - self._clock()
                if self._under_way < self._limit and pause <= 0:
                    self._under_way += 1
                    return self._episode, self._answers
                self._changed.wait(pause if pause > 0 else None)
            raise ModelError("cancelled", "all calls were stopped")

    def _record_final_result(self, error: ModelError | None) -> None:
        """Record the result of a call that is not repeated; *error* is ``None`` if it succeeded.

        Stops all calls if the key was rejected or the first calls all failed.
        """
        with self._changed:
            self._record_ended_call()
            self._settled += 1
            if error is None or error.reason in _SERVICE_WORKS:
                self._count_answer()
            elif error.reason == "unauthorized":
                self._stop_calls(error)
            elif not self._answers and error.reason != "cancelled":
                self._first_failures += 1
                if self._first_failures >= MAX_FIRST_FAILURES:
                    self._stop_calls(error)

    def _handle_failure(self, error: ModelError, pauses_before: int) -> _Failure:
        """Record that a call failed with *error*, and return what to do next.

        *pauses_before* is the number of pauses before the call began.
        """
        if error.reason == "over_budget" and error.retry_after is None:
            return self._wait_for_budget(error)
        # A repeated call would fail again, for example if the key is wrong.
        if error.reason not in _TEMPORARY:
            self._record_final_result(error)
            return _Failure.FINAL
        with self._changed:
            self._record_ended_call()
            self._settled += error.was_asked
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since >= self._patience:
                self._stop_calls(error)
            self._failures_in_row += error.reason in _CALL_OR_SERVICE
            # A few timeouts may be chance, so the other callers go on.
            if (
                error.reason in _CALL_OR_SERVICE
                and error.retry_after is None
                and self._failures_in_row < SEVERAL
            ):
                return _Failure.LONE
            self._handle_overload(error, now, has_begun_after_pause=pauses_before == self._episode)
            return _Failure.SHARED

    def _handle_overload(
        self, error: ModelError, now: float, *, has_begun_after_pause: bool
    ) -> None:
        """Pause all callers after *error*, and halve the number of calls that may run at once.

        Args:
            error: The call's error. If the call did not reach the service, the number of calls is
                not halved.
            now: The current time.
            has_begun_after_pause: Whether the call began after the last pause. If not, the number
                of calls is not halved, and callers are paused only if the service asks for a pause.
        """
        if has_begun_after_pause:
            self._episode += 1
            if error.was_asked:
                self._limit = max(1, self._limit // 2)
                self._answers_since_change = 0
        if has_begun_after_pause or error.retry_after is not None:
            self._pause_callers(now, error.retry_after)

    def _wait_for_budget(self, error: ModelError) -> _Failure:
        """Wait until another call has ended, because it may have cost less than was reserved.

        If no other call is running, the budget is used up: all calls are stopped.
        """
        with self._changed:
            self._record_ended_call()
            if not self._under_way:
                self._stop_calls(error)
            settled = self._settled
            self._changed.wait_for(lambda: self.error is not None or self._settled > settled)
        return _Failure.SHARED

    def _pause_callers(self, now: float, pause_seconds: float | None) -> None:
        if pause_seconds is None:
            pause_seconds = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._pauses)
            self._pauses += 1
        self._resume_at = max(self._resume_at, now + max(pause_seconds, _SHORTEST_PAUSE))

    def _count_answer(self) -> None:
        self._answers += 1
        self._failing_since, self._pauses, self._failures_in_row = None, 0, 0
        self._answers_since_change += 1
        # The service has answered as many calls as may run at once, so one more may run.
        if self._answers_since_change >= self._limit < self._most:
            self._limit += 1
            self._answers_since_change = 0

    def _record_ended_call(self) -> None:
        """Reduce the number of running calls by one, and wake the waiting callers."""
        self._under_way -= 1
        self._changed.notify_all()

    def _stop_calls(self, error: QtMiddlewareError) -> None:
        self.error = self.error or error
        self._changed.notify_all()
