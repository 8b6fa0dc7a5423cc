"""What the language models of this process were asked and what that came to, held against budgets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from qtmiddleware.errors import ModelError
from qtmiddleware.forking import ForkLock
from qtmiddleware.settings import BudgetSettings

_MINUTE: Final = 60.0


@dataclass(slots=True)
class _Spent:
    """What was spent from *since* on, for about a minute; what is only expected yet counts too."""

    since: float
    tokens: int = 0
    usd: float = 0.0


class Reservation:
    """What one call may come to, until `settle` says what it did come to; unsettled it counts as expected."""

    __slots__ = ("_meter", "_spent", "_tokens", "_usd")

    def __init__(self, meter: Meter, spent: _Spent, tokens: int, usd: float) -> None:
        self._meter = meter
        self._spent = spent
        self._tokens = tokens
        self._usd = usd

    def settle(self, tokens: int, usd: float, *, calls: int = 1) -> None:
        """Put *tokens* and US dollars in place of those expected; *calls* beyond the first count as made now."""
        self._meter._settle(self._spent, tokens - self._tokens, usd - self._usd, calls - 1)
        self._tokens, self._usd = tokens, usd


class Meter:
    """Counts calls over the last minute, tokens and money over the last hours, to a minute; safe with many threads.

    A call is counted with what it may at most come to before it is made, so that many at once cannot go beyond a
    budget together. A forked process goes on from what its parent had spent.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: deque[float] = deque()
        self._minutes: deque[_Spent] = deque()
        # How far back the longest budget looks.
        self._horizon = _MINUTE
        self._lock = ForkLock()

    def lacks(self, budget: BudgetSettings, *, tokens: int = 0, usd: float = 0.0) -> str:
        """What *budget* has no room for, as a sentence; ``""`` where one more call with so much may be made."""
        with self._lock.free:
            return self._lacks(budget, tokens, usd)

    def reserve(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Count one call that may come to so many *tokens* and US dollars; raises `ModelError` where it has no room."""
        with self._lock.free:
            lacking = self._lacks(budget, tokens, usd)
            if lacking:
                raise ModelError("over_budget", lacking)
            now = self._clock()
            self._calls.append(now)
            if not self._minutes or self._minutes[-1].since <= now - _MINUTE:
                self._minutes.append(_Spent(now))
            spent = self._minutes[-1]
            spent.tokens += tokens
            spent.usd += usd
            return Reservation(self, spent, tokens, usd)

    def _lacks(self, budget: BudgetSettings, tokens: int, usd: float) -> str:
        now = self._clock()
        while self._calls and self._calls[0] <= now - _MINUTE:
            self._calls.popleft()
        self._horizon = max(self._horizon, budget.hours * 3600.0)
        while self._minutes and self._minutes[0].since <= now - self._horizon - _MINUTE:
            self._minutes.popleft()
        most = budget.max_llm_calls_per_minute
        if most is not None and len(self._calls) >= most:
            return f"budget.maxLlmCallsPerMinute allows {most:,} calls of language models a minute"
        if budget.max_tokens is None and budget.max_usd is None:
            return ""
        since = now - budget.hours * 3600.0
        recent = [spent for spent in self._minutes if spent.since > since]
        if budget.max_tokens is not None and sum(it.tokens for it in recent) + tokens > budget.max_tokens:
            return f"budget.maxTokens allows {budget.max_tokens:,} tokens in {budget.hours:g} hours"
        if budget.max_usd is not None and sum(it.usd for it in recent) + usd > budget.max_usd:
            return f"budget.maxUsd allows {budget.max_usd:g} US dollars in {budget.hours:g} hours"
        return ""

    def _settle(self, spent: _Spent, tokens: int, usd: float, calls: int) -> None:
        with self._lock.free:
            spent.tokens += tokens
            spent.usd += usd
            self._calls.extend([self._clock()] * calls)


METER: Final = Meter()
"""The meter of this process: the budgets of all middlewares in it are held against the same sums."""
