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
        self.lock = make_lock()
        self._clock = clock
        self._minutes: deque[Minute] = deque()

    def find_exceeded_limit(self, budget: BudgetSettings) -> ModelError | None:
        """Return the error ``over_budget`` if *budget* does not allow one more call."""
        with self.lock:
            return self._find_exceeded_limit(budget, self._get_minute(), 0, 0.0)

    def spent(self) -> tuple[int, int, float]:
        """Return the calls of this minute, and the tokens and dollars of the last 24 hours."""
        with self.lock:
            return self._get_minute().calls, *self._sum_spending()

    def reserve_cost(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Reserve *tokens* tokens and *usd* US dollars of *budget* for one call."""
        with self.lock:
            # Checked and counted under one lock, so that two callers cannot use the same budget.
            minute = self._get_minute()
            if (error := self._find_exceeded_limit(budget, minute, tokens, usd)) is not None:
                raise error
            if not minute.calls:
                self._minutes.append(minute)
            minute.calls += 1
            minute.tokens += tokens
            minute.usd += usd
            return Reservation(self.lock, minute, tokens, usd)

    def _find_exceeded_limit(
        self, budget: BudgetSettings, minute: Minute, tokens: int, usd: float
    ) -> ModelError | None:
        most_calls = budget.max_llm_calls_per_minute
        if most_calls is not None and minute.calls >= most_calls:
            limit = f"budget.maxLlmCallsPerMinute allows {most_calls:,} language model calls"
            pause = minute.began + _MINUTE - self._clock() if most_calls else None
            return ModelError("over_budget", f"{limit} per minute", retry_after=pause)
        if budget.max_tokens is None and budget.max_usd is None:
            return None
        spent_tokens, spent_usd = self._sum_spending()
        if budget.max_tokens is not None and spent_tokens + tokens > budget.max_tokens:
            limit = f"budget.maxTokens allows {budget.max_tokens:,} tokens"
        elif budget.max_usd is not None and spent_usd + usd > budget.max_usd:
            limit = f"budget.maxUsd allows {budget.max_usd:g} US dollars"
        else:
            return None
        return ModelError("over_budget", f"{limit} in 24 hours")

    def _get_minute(self) -> Minute:
        """Forget minutes older than a day, and return the current one, which may be new."""
        now = self._clock()
        while self._minutes and self._minutes[0].began <= now - _DAY:
            self._minutes.popleft()
        if self._minutes and now < self._minutes[-1].began + _MINUTE:
            return self._minutes[-1]
        return Minute(now)

    def _sum_spending(self) -> tuple[int, float]:
        tokens = sum(minute.tokens for minute in self._minutes)
        return tokens, sum(minute.usd for minute in self._minutes)


METER: Final = Meter()
"""The meter of this process. All middlewares check their budgets with it."""
