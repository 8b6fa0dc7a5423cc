"""One pace for all who ask a service: how many calls are under way, and when none is begun.

Additive increase, multiplicative decrease (Chiu and Jain, 1989): a sign of overload halves the
calls under way, once per episode, and pauses all; as many answers as are under way add one again.
Signs of overload are

- a rate limit, or any failure with which the service names a pause (Retry-After),
- `SEVERAL` outages or timeouts without an answer between them.

Nobody asks before the time that the service names or, if it names none, before a pause that doubles
until something is answered. A lone outage or timeout says nothing about the load: its own call
waits a little, and the others go on.
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
"""For how many seconds without an answer a service is tried, before all is stopped."""
TRIES: Final = 5
"""How often a call may be late or refused while others are answered, before that is its own fault."""
MOST_HOPELESS: Final = 3
"""How many of the first calls may fail for good, with none answered, before all is stopped."""
SEVERAL: Final = 5
"""How many outages and timeouts without an answer between them are a sign of overload. If 5 % fail by chance, that many
in a row come once in three million calls; if half of them fail, within about sixty."""
_SHORTEST_PAUSE: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_FIRST_WAIT: Final = 0.1

# What may be owed to the question, or to chance, as well as to the service.
_OWN: Final = frozenset({"timeout", "unavailable"})
_PASSING: Final = _OWN | {"rate_limited", "circuit_open", "overloaded", "over_budget"}
# What says that the service is there and at work.
_AT_WORK: Final = frozenset({"refused", "too_long", "empty", "truncated", "unrecorded"})


class _Failure(Enum):
    """What a failure means: ``FINAL`` for its call, ``SHARED`` as all wait, or ``LONE`` as only its own call waits."""

    FINAL = "final"
    SHARED = "shared"
    LONE = "lone"


class Pace:
    """At most *concurrency* calls at once, fewer if the service is overloaded, none while it asks for a pause.

    `perform` asks again what failed and may pass (rate limits, outages, an open circuit breaker, a
    budget a minute), so that nobody sees it, for *patience* seconds without any answer. Then
    everything is stopped, and so it is if the key is refused, a budget is spent, or nothing is ever
    answered: *error* says why. Thread-safe.
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
        # How often all were paused: what began before that says nothing new.
        self._episode = 0
        self._pauses = self._failures_in_row = 0
        self._answers = self._answers_since_change = 0
        self._settled = self._hopeless = 0

    @property
    def limit(self) -> int:
        """How many calls may be under way now."""
        return self._limit

    def perform(self, call: Callable[[], T]) -> T:
        """What *call* returns, made as often as it takes; raises what it raises for good.

        Once all is stopped that is a `ModelError` ``cancelled``.
        """
        tries, lone, wait = 0, 0, 0.0
        answers: int | None = None
        while True:
            episode, answers_now = self._enter(wait)
            answers = answers_now if answers is None else answers
            try:
                value = call()
            except ModelError as error:
                if error.reason in _OWN and self._answers > answers:
                    # While nothing is answered it is the service.
                    tries, answers = tries + 1, self._answers
                kind = self._take_failure(error, episode)
                if kind is _Failure.FINAL or tries >= TRIES:
                    raise
                wait = 0.0
                if kind is _Failure.LONE:
                    wait = _FIRST_WAIT * 2.0 ** min(lone, TRIES)
                    lone += 1
            except BaseException as error:
                self._take_end(
                    ModelError("failed", f"the language model raised {type(error).__name__}")
                )
                raise
            else:
                self._take_end(None)
                return value

    def stop(self, error: QtMiddlewareError | None = None) -> None:
        """Begin no further call; who waits for one is told so at once."""
        with self._changed:
            self._stop(error or ModelError("cancelled", "stopped"))

    def _enter(self, wait: float) -> tuple[int, int]:
        """Wait for *wait* seconds and for a place; returns the episode and the number of answers at that moment."""
        with self._changed:
            start = self._clock() + wait
            while self.error is None:
                pause = max(start, self._resume_at) - self._clock()
                if self._under_way < self._limit and pause <= 0:
                    self._under_way += 1
                    return self._episode, self._answers
                self._changed.wait(pause if pause > 0 else None)
            raise ModelError("cancelled", "all calls were stopped")

    def _take_end(self, error: ModelError | None) -> None:
        """A call has ended for good."""
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

    def _take_failure(self, error: ModelError, episode: int) -> _Failure:
        if error.reason == "over_budget" and error.retry_after is None:
            return self._await_room(error)
        if error.reason not in _PASSING:
            self._take_end(error)
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
        if is_news:
            self._episode += 1
            if error.was_asked:
                self._limit = max(1, self._limit // 2)
                self._answers_since_change = 0
        if is_news or error.retry_after is not None:
            self._pause(now, error.retry_after)

    def _await_room(self, error: ModelError) -> _Failure:
        """A budget has no room: what is under way counts as expected, and may come to less."""
        with self._changed:
            self._leave()
            if not self._under_way:
                self._stop(error)
            settled = self._settled
            self._changed.wait_for(lambda: self.error is not None or self._settled > settled)
        return _Failure.SHARED

    def _pause(self, now: float, rest: float | None) -> None:
        if rest is None:
            rest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._pauses)
            self._pauses += 1
        self._resume_at = max(self._resume_at, now + max(rest, _SHORTEST_PAUSE))

    def _count_answer(self) -> None:
        self._answers += 1
        self._failing_since, self._pauses, self._failures_in_row = None, 0, 0
        self._answers_since_change += 1
        if self._answers_since_change >= self._limit < self._most:
            self._limit += 1
            self._answers_since_change = 0

    def _leave(self) -> None:
        self._under_way -= 1
        self._changed.notify_all()

    def _stop(self, error: QtMiddlewareError) -> None:
        self.error = self.error or error
        self._changed.notify_all()
