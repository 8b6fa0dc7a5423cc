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
class Spent:
    """The tokens and US dollars of the calls that began in the same minute."""

    minute: float
    tokens: int = 0
    usd: float = 0.0


@dataclass(eq=False, slots=True)
class Reservation:
    """The cost that *spent* includes for one call, until `record_actual_cost` corrects it."""

    lock: threading.Lock
    spent: Spent
    tokens: int
    usd: float

    def record_actual_cost(self, tokens: int, usd: float) -> None:
        """Count the spent amounts in place of the reserved ones, once per call.

        Impossible amounts are ignored.
        """
        with self.lock:
            if 0 <= tokens <= MOST_TOKENS:
                self.spent.tokens += tokens - self.tokens
            if 0 <= usd < inf:
                self.spent.usd += usd - self.usd


class Meter:
    """Counts the calls of the last minute, and the tokens and money of the last 24 hours.

    The highest possible cost of a call is counted before the call begins, so that concurrent calls
    cannot exceed a budget together. Thread-safe.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self.lock = make_lock()
        self._clock = clock
        self._calls: deque[float] = deque()
        self._spent: deque[Spent] = deque()

    def find_exceeded_limit(self, budget: BudgetSettings) -> ModelError | None:
        """Return the error ``over_budget`` if *budget* does not allow one more call."""
        with self.lock:
            return self._find_exceeded_limit(budget, 0, 0.0)

    def spent(self) -> tuple[int, int, float]:
        """Return the calls of the last minute, and the tokens and dollars of the last 24 hours."""
        with self.lock:
            self._forget_old_amounts()
            return len(self._calls), *self._sum_spending()

    def reserve_cost(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Reserve *tokens* tokens and *usd* US dollars of *budget* for one call."""
        with self.lock:
            # Checked and counted under one lock, so that two callers cannot use the same budget.
            if (error := self._find_exceeded_limit(budget, tokens, usd)) is not None:
                raise error
            now = self._clock()
            self._calls.append(now)
            minute = now // _MINUTE
            if not self._spent or self._spent[-1].minute != minute:
                self._spent.append(Spent(minute))
            spent = self._spent[-1]
            spent.tokens += tokens
            spent.usd += usd
            return Reservation(self.lock, spent, tokens, usd)

    def _find_exceeded_limit(
        self, budget: BudgetSettings, tokens: int, usd: float
    ) -> ModelError | None:
        now = self._forget_old_amounts()
        most_calls = budget.max_llm_calls_per_minute
        if most_calls is not None and len(self._calls) >= most_calls:
            pause = self._calls[-most_calls] + _MINUTE - now if most_calls else None
            limit = f"budget.maxLlmCallsPerMinute allows {most_calls:,} language model calls"
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

    def _sum_spending(self) -> tuple[int, float]:
        return sum(it.tokens for it in self._spent), sum(it.usd for it in self._spent)

    def _forget_old_amounts(self) -> float:
        """Forget calls older than a minute and costs older than a day, and return the time."""
        now = self._clock()
        while self._calls and self._calls[0] <= now - _MINUTE:
            self._calls.popleft()
        while self._spent and (self._spent[0].minute + 1) * _MINUTE <= now - _DAY:
            self._spent.popleft()
        return now


METER: Final = Meter()
"""The meter of this process. All middlewares check their budgets with it."""
