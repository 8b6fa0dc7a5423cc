"""Limit how many calls of a service run at once, and pause all callers during an overload.

Additive increase, multiplicative decrease (Chiu and Jain, 1989): a sign of overload halves the
number of calls that may run at once and pauses all callers. Signs from calls that began before the
last pause are ignored. Once the service has answered as many calls as may run at once, the number
rises by one. Signs of overload are

- a rate limit, or any failure with which the service names a pause (Retry-After),
- five outages or timeouts (`SEVERAL`) without an answer between them.

The pause lasts as long as the service says. If the service names no time, each pause is twice as
long as the last, until the service answers. A single outage or timeout is no sign of overload: only
the failed call waits a little.
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
"""How many seconds without an answer a service is tried before everything is stopped."""
TRIES: Final = 5
"""How often a call may be late or refused while others are answered, before it fails for good."""
MOST_HOPELESS: Final = 3
"""How many of the first calls may fail for good, with none answered, before all is stopped."""
SEVERAL: Final = 5
"""How many outages and timeouts without an answer between them are a sign of overload.

If 5 % of the calls fail by chance, that many in a row come once in three million calls; if half of
them fail, within about sixty.
"""
_SHORTEST_PAUSE: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_FIRST_WAIT: Final = 0.1

# Failures that may be due to the question or to chance as well as to the service.
_OWN: Final = frozenset({"timeout", "unavailable"})
_PASSING: Final = _OWN | {"rate_limited", "circuit_open", "overloaded", "over_budget"}
# Failures that show that the service is working.
_AT_WORK: Final = frozenset({"refused", "too_long", "empty", "truncated", "unrecorded"})


class _Failure(Enum):
    """What happens after a failed call.

    Attributes:
        FINAL: The call fails and is not repeated.
        SHARED: All callers wait, and the call is repeated.
        LONE: Only this caller waits, and the call is repeated.
    """

    FINAL = "final"
    SHARED = "shared"
    LONE = "lone"


class Pace:
    """Runs up to *concurrency* calls at once: fewer during an overload, none during a pause.

    `perform` repeats calls that fail for a temporary reason (rate limit, outage, open circuit
    breaker, budget per minute), so that the caller does not see the failure. All calls are stopped
    after *patience* seconds without an answer, if the key is rejected, if a budget is spent, or if
    the first calls all fail. Thread-safe.

    Attributes:
        error: Why all calls were stopped, or ``None``.
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
        # How often all callers were paused. A failure of a call that began before the last pause is
        # not news.
        self._episode = 0
        self._pauses = self._failures_in_row = 0
        self._answers = self._answers_since_change = 0
        self._settled = self._hopeless = 0

    @property
    def limit(self) -> int:
        """How many calls may run at once now."""
        return self._limit

    def perform(self, call: Callable[[], T]) -> T:
        """Return the result of *call*, repeating the call while it fails for a temporary reason.

        Raises the error of the last try, and `ModelError` ``cancelled`` once all calls are stopped.
        """
        tries, lone_failures, wait = 0, 0, 0.0
        answers: int | None = None
        while True:
            episode, answers_now = self._wait_for_turn(wait)
            answers = answers_now if answers is None else answers
            try:
                value = call()
            except ModelError as error:
                if error.reason in _OWN and self._answers > answers:
                    # Other calls were answered since the last try. While nothing is answered, the
                    # failure is the service's, not this call's.
                    tries, answers = tries + 1, self._answers
                kind = self._handle_failure(error, episode)
                if kind is _Failure.FINAL or tries >= TRIES:
                    raise
                wait = 0.0
                if kind is _Failure.LONE:
                    wait = _FIRST_WAIT * 2.0 ** min(lone_failures, TRIES)
                    lone_failures += 1
            except BaseException as error:
                self._record_end(
                    ModelError("failed", f"the language model raised {type(error).__name__}")
                )
                raise
            else:
                self._record_end(None)
                return value

    def stop(self, error: QtMiddlewareError | None = None) -> None:
        """Begin no more calls.

        Callers that are waiting get a `ModelError` at once.
        """
        with self._changed:
            self._stop(error or ModelError("cancelled", "stopped"))

    def _wait_for_turn(self, wait: float) -> tuple[int, int]:
        """Wait at least *wait* seconds, until one more call may begin.

        Returns:
            episode: The number of pauses so far.
            answers: The number of answered calls so far.

        Raises:
            ModelError: ``cancelled`` if all calls were stopped.
        """
        with self._changed:
            start = self._clock() + wait
            while self.error is None:
                pause = max(start, self._resume_at) - self._clock()
                if self._under_way < self._limit and pause <= 0:
                    self._under_way += 1
                    return self._episode, self._answers
                self._changed.wait(pause if pause > 0 else None)
            raise ModelError("cancelled", "all calls were stopped")

    def _record_end(self, error: ModelError | None) -> None:
        """Record the end of a call that is not repeated; *error* is ``None`` if it succeeded.

        All calls are stopped if the key is rejected, or if the first calls all fail.
        """
        with self._changed:
            self._leave()
            self._settled += 1
            if error is None or error.reason in _AT_WORK:
                self._count_answer()
            elif error.reason == "unauthorized":
                self._stop(error)
            elif not self._answers and error.reason != "cancelled":
                self._hopeless += 1
                if self._hopeless >= MOST_HOPELESS:
                    self._stop(error)

    def _handle_failure(self, error: ModelError, episode: int) -> _Failure:
        """Record that a call failed with *error*, and return what to do next.

        *episode* is the number of pauses before the call began.
        """
        if error.reason == "over_budget" and error.retry_after is None:
            return self._wait_for_room(error)
        if error.reason not in _PASSING:
            self._record_end(error)
            return _Failure.FINAL
        with self._changed:
            self._leave()
            self._settled += error.was_asked
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since >= self._patience:
                self._stop(error)
            self._failures_in_row += error.reason in _OWN
            if (
                error.reason in _OWN
                and error.retry_after is None
                and self._failures_in_row < SEVERAL
            ):
                return _Failure.LONE
            self._slow_down(error, now, is_news=episode == self._episode)
            return _Failure.SHARED

    def _slow_down(self, error: ModelError, now: float, *, is_news: bool) -> None:
        """Pause all callers after *error*, and halve the number of calls that may run at once.

        The number stays the same if the service was not called. If *is_news* is false, because the
        call began before the last pause, the number stays the same too, and callers are paused only
        if the service named a pause.
        """
        if is_news:
            self._episode += 1
            if error.was_asked:
                self._limit = max(1, self._limit // 2)
                self._answers_since_change = 0
        if is_news or error.retry_after is not None:
            self._pause(now, error.retry_after)

    def _wait_for_room(self, error: ModelError) -> _Failure:
        """Wait until another call has ended, because it may have cost less than was reserved.

        If no other call is running, the budget is spent, and all calls are stopped.
        """
        with self._changed:
            self._leave()
            if not self._under_way:
                self._stop(error)
            settled = self._settled
            self._changed.wait_for(lambda: self.error is not None or self._settled > settled)
        return _Failure.SHARED

    def _pause(self, now: float, seconds: float | None) -> None:
        if seconds is None:
            seconds = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._pauses)
            self._pauses += 1
        self._resume_at = max(self._resume_at, now + max(seconds, _SHORTEST_PAUSE))

    def _count_answer(self) -> None:
        self._answers += 1
        self._failing_since, self._pauses, self._failures_in_row = None, 0, 0
        self._answers_since_change += 1
        # The service has answered as many calls as may run at once, so one more may run.
        if self._answers_since_change >= self._limit < self._most:
            self._limit += 1
            self._answers_since_change = 0

    def _leave(self) -> None:
        """Record that a call is no longer running, and wake the waiting callers."""
        self._under_way -= 1
        self._changed.notify_all()

    def _stop(self, error: QtMiddlewareError) -> None:
        self.error = self.error or error
        self._changed.notify_all()
