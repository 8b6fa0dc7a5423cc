"""One pace for all who ask a service: how many calls are under way, and when none is begun.

Additive increase, multiplicative decrease (Chiu and Jain, 1989): what says that the service is asked too much halves
the calls under way, once an episode; as many answers as are under way add one again. Nobody asks before the time that a
service names (Retry-After) or, where it names none, before a pause that doubles until something is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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
_SHORTEST_PAUSE: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0

# Who is asked less is busy; who is not asked at all is not.
_BUSY: Final = frozenset({"rate_limited", "timeout", "unavailable"})
_PASSING: Final = _BUSY | {"circuit_open", "overloaded"}
# What may be owed to the question as well as to the service.
_OWN: Final = frozenset({"timeout", "unavailable"})
# What says that the service is there and at work.
_AT_WORK: Final = frozenset({"refused", "too_long", "empty", "truncated", "unrecorded"})


class Pace:
    """At most *concurrency* calls at once, fewer where the service is busy, none while it wants to be left alone.

    `perform` asks again what failed and may pass (rate limits, outages, an open circuit breaker, a budget a minute), so
    that nobody sees it, for *patience* seconds without any answer; then, and where the key is refused, a budget is
    spent, or nothing is ever answered, all is stopped: *error* says why. Thread-safe.
    """

    def __init__(self, concurrency: int, *, patience: float = PATIENCE, clock: Callable[[], float] = monotonic) -> None:
        self.error: QtMiddlewareError | None = None
        self._most = concurrency
        self._patience = patience
        self._clock = clock
        self._changed = threading.Condition()
        self._limit = concurrency
        self._under_way = 0
        self._resume_at = 0.0
        self._failing_since: float | None = None
        # How often the limit was lowered: what began before that says nothing new.
        self._episode = 0
        self._pauses = 0
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
        tries = 0
        while True:
            episode, answers = self._enter()
            try:
                value = call()
            except ModelError as error:
                if error.reason in _OWN:
                    # While nothing is answered it is the service.
                    tries += self._answers > answers
                if not self._take_failure(error, episode) or tries >= TRIES:
                    raise
            except BaseException as error:
                self._take_end(ModelError("failed", f"the language model raised {type(error).__name__}"))
                raise
            else:
                self._take_end(None)
                return value

    def stop(self, error: QtMiddlewareError | None = None) -> None:
        """Begin no further call; who waits for one is told so at once."""
        with self._changed:
            self._stop(error or ModelError("cancelled", "stopped"))

    def _enter(self) -> tuple[int, int]:
        """Wait for a place; returns the episode and the number of answers at that moment."""
        with self._changed:
            while self.error is None:
                pause = self._resume_at - self._clock()
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

    def _take_failure(self, error: ModelError, episode: int) -> bool:
        """Returns whether the call is to be made again."""
        if error.reason == "over_budget" and error.retry_after is None:
            return self._await_room(error)
        if error.reason not in _PASSING and error.reason != "over_budget":
            self._take_end(error)
            return False
        with self._changed:
            self._leave()
            self._settled += error.was_asked
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since >= self._patience:
                self._stop(error)
            is_news = episode == self._episode
            if is_news and error.reason in _BUSY:
                self._episode += 1
                self._limit = max(1, self._limit // 2)
                self._answers_since_change = 0
            if is_news or error.retry_after is not None:
                self._pause(now, error.retry_after)
        return True

    def _await_room(self, error: ModelError) -> bool:
        """A budget has no room: what is under way counts as expected, and may come to less."""
        with self._changed:
            self._leave()
            if not self._under_way:
                self._stop(error)
            settled = self._settled
            self._changed.wait_for(lambda: self.error is not None or self._settled > settled)
        return True

    def _pause(self, now: float, rest: float | None) -> None:
        if rest is None:
            rest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._pauses)
            self._pauses += 1
        self._resume_at = max(self._resume_at, now + max(rest, _SHORTEST_PAUSE))

    def _count_answer(self) -> None:
        self._answers += 1
        self._failing_since, self._pauses = None, 0
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
