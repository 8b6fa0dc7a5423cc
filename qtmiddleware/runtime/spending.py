"""Count the model calls, tokens and costs of this process, and reject calls above a budget."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

from qtmiddleware.config.settings import BudgetSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.forking import make_lock

MOST_TOKENS: Final = 10**12
"""The largest plausible number of tokens. A higher number is ignored, as a service's mistake."""
_MINUTE: Final = 60.0
_DAY: Final = 24 * 60 * _MINUTE
_NO_LIMITS: Final = BudgetSettings()


@dataclass(eq=False, slots=True)
class Minute:
    """The calls, tokens and US dollars of one minute, which begins with its first call."""

    began: float
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


@dataclass(eq=False, slots=True)
class Reservation:
    """The cost that *minute* includes for one call, until `record_actual_cost` corrects it."""

    lock: threading.Lock
    minute: Minute
    tokens: int
    usd: float

    def record_actual_cost(self, tokens: int, usd: float) -> None:
        """Count the spent amounts in place of the reserved ones, once per call.

        Impossible amounts are ignored.
        """
        with self.lock:
            if 0 <= tokens <= MOST_TOKENS:
                self.minute.tokens += tokens - self.tokens
            if 0 <= usd < inf:
                self.minute.usd += usd - self.usd


class Meter:
    """Counts the calls of a minute, and the tokens and money of the last 24 hours. Thread-safe.

    The highest possible cost of a call is counted before the call begins, so that concurrent calls
    cannot exceed a budget together.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._lock = make_lock()
        self._clock = clock
        # Only minutes with calls, so these are at least the last 24 hours.
        self._minutes: deque[Minute] = deque(maxlen=24 * 60)

    def spent(self) -> tuple[int, int, float]:
        """Return the calls of this minute, and the tokens and dollars of the last 24 hours."""
        now = self._clock()
        minutes = [minute for minute in tuple(self._minutes) if now < minute.began + _DAY]
        calls = sum(minute.calls for minute in minutes if now < minute.began + _MINUTE)
        tokens = sum(minute.tokens for minute in minutes)
        return calls, tokens, sum(minute.usd for minute in minutes)

    def find_exceeded_limit(
        self, budget: BudgetSettings, *, tokens: int = 0, usd: float = 0.0
    ) -> ModelError | None:
        """Return the error ``over_budget`` if *budget* does not allow a call of this cost."""
        if budget == _NO_LIMITS:
            return None
        calls, spent_tokens, spent_usd = self.spent()
        most_calls = budget.max_llm_calls_per_minute
        pause = None
        if most_calls is not None and calls >= most_calls:
            limit = f"budget.maxLlmCallsPerMinute allows {most_calls:,} model calls per minute"
            pause = self._minutes[-1].began + _MINUTE - self._clock() if calls else None
        elif budget.max_tokens is not None and spent_tokens + tokens > budget.max_tokens:
            limit = f"budget.maxTokens allows {budget.max_tokens:,} tokens in 24 hours"
        elif budget.max_usd is not None and spent_usd + usd > budget.max_usd:
            limit = f"budget.maxUsd allows {budget.max_usd:g} US dollars in 24 hours"
        else:
            return None
        return ModelError("over_budget", limit, retry_after=pause)

    def reserve_cost(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Reserve *tokens* tokens and *usd* US dollars of *budget* for one call."""
        with self._lock:
            # Checked and counted under one lock, so that two callers cannot use the same budget.
            if error := self.find_exceeded_limit(budget, tokens=tokens, usd=usd):
                raise error
            now = self._clock()
            if not self._minutes or now >= self._minutes[-1].began + _MINUTE:
                self._minutes.append(Minute(now))
            minute = self._minutes[-1]
            minute.calls += 1
            minute.tokens += tokens
            minute.usd += usd
        return Reservation(self._lock, minute, tokens, usd)


METER: Final = Meter()
"""The meter of this process. All middlewares check their budgets with it."""
