"""Count the model calls, tokens and costs of this process, and reject calls above a budget."""

from __future__ import annotations

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
_DAY: Final = 86_400.0
_MOST_RETRIES: Final = 1_000


@dataclass(slots=True)
class _Bucket:
    """The tokens and US dollars of the calls that began within the same minute of the clock.

    While a call is running, its highest possible cost is counted.
    """

    minute: float
    tokens: int = 0
    usd: float = 0.0


@dataclass(slots=True)
class Reservation:
    """The cost reserved for one call, until `record_actual_cost` replaces it with the actual cost.

    Attributes:
        tokens: The reserved tokens; after `record_actual_cost`, the spent tokens.
        usd: The reserved US dollars; after `record_actual_cost`, the spent US dollars.
    """

    _meter: Meter
    _bucket: _Bucket
    tokens: int
    usd: float
    _calls: int = 1

    def record_actual_cost(self, tokens: int, usd: float, *, calls: int = 1) -> None:
        """Replace the reserved amounts with the amounts that were spent.

        An impossible amount is ignored, and the reserved amount stays: a negative or infinite
        number, NaN, or more than `MOST_TOKENS` tokens.

        Args:
            tokens: The spent tokens.
            usd: The spent US dollars.
            calls: How many calls were made, including retries. Retries count as made now.
        """
        with self._meter.lock:
            if 0 <= tokens <= MOST_TOKENS:
                self._bucket.tokens += tokens - self.tokens
                self.tokens = tokens
            if 0 <= usd < inf:
                self._bucket.usd += usd - self.usd
                self.usd = usd
            # A user's own model reports its calls, so the number may be a mistake.
            retries = min(max(0, calls - self._calls), _MOST_RETRIES)
            self._calls += retries
            self._meter.calls.extend([self._meter.clock()] * retries)


class Meter:
    """Counts the calls of the last minute, and the tokens and money of the last 24 hours.

    The highest possible cost of a call is counted before the call begins, so that concurrent calls
    cannot exceed a budget together. Tokens and dollars never stop counting too early, but may count
    up to 1 minute too long. A forked process continues with its parent's counts. Thread-safe.

    Attributes:
        clock: Returns the time in seconds.
        lock: Protects the counts.
        calls: The times of the calls, oldest first.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.lock = make_lock()
        self.calls: deque[float] = deque()
        self._buckets: deque[_Bucket] = deque()

    def find_exceeded_limit(
        self, budget: BudgetSettings, *, tokens: int = 0, usd: float = 0.0
    ) -> ModelError | None:
        """Return the error ``over_budget`` if *budget* does not allow one more call.

        If the limit of calls per minute is exceeded, ``retry_after`` is the number of seconds to
        wait.

        Args:
            budget: The limits.
            tokens: The highest possible number of tokens of the call.
            usd: The highest possible cost of the call, in US dollars.
        """
        with self.lock:
            return self._find_exceeded_limit(budget, tokens, usd)

    def spent(self) -> tuple[int, int, float]:
        """Return the calls of the last minute, and the tokens and dollars of the last 24 hours."""
        with self.lock:
            self._forget_old_amounts()
            return len(self.calls), *self._sum_spending()

    def reserve_cost(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Reserve *tokens* tokens and *usd* US dollars of *budget* for one call.

        Raises the error of `find_exceeded_limit`.
        """
        with self.lock:
            # Checked and counted under one lock, so that two callers cannot use the same budget.
            if (error := self._find_exceeded_limit(budget, tokens, usd)) is not None:
                raise error
            now = self.clock()
            self.calls.append(now)
            minute = now // _MINUTE
            if not self._buckets or self._buckets[-1].minute != minute:
                self._buckets.append(_Bucket(minute))
            bucket = self._buckets[-1]
            bucket.tokens += tokens
            bucket.usd += usd
            return Reservation(self, bucket, tokens, usd)

    def _find_exceeded_limit(
        self, budget: BudgetSettings, tokens: int, usd: float
    ) -> ModelError | None:
        now = self._forget_old_amounts()
        most_calls = budget.max_llm_calls_per_minute
        if most_calls is not None and len(self.calls) >= most_calls:
            return ModelError(
                "over_budget",
                f"budget.maxLlmCallsPerMinute allows {most_calls:,} language model calls per"
                " minute",
                retry_after=self.calls[-most_calls] + _MINUTE - now if most_calls else None,
            )
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
        return (
            sum(bucket.tokens for bucket in self._buckets),
            sum(bucket.usd for bucket in self._buckets),
        )

    def _forget_old_amounts(self) -> float:
        """Forget calls older than a minute and costs older than a day, and return the time."""
        now = self.clock()
        while self.calls and self.calls[0] <= now - _MINUTE:
            self.calls.popleft()
        while self._buckets and (self._buckets[0].minute + 1) * _MINUTE <= now - _DAY:
            self._buckets.popleft()
        return now


METER: Final = Meter()
"""The meter of this process. All middlewares check their budgets with it."""
