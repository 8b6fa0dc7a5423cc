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
# How many buckets a window has. For calls, a bucket is one second of the minute. For tokens and
# money, a bucket is one minute of the day.
_BUCKETS_OF_CALLS: Final = 60
_BUCKETS_OF_SPENDING: Final = 1_440


@dataclass(slots=True)
class _Bucket:
    """The calls, tokens and US dollars of one part of a time window.

    While a call is running, its highest possible cost is counted.

    Attributes:
        since: When the bucket was opened, in seconds on the meter's clock.
        last: When the last amount was added, in seconds on the meter's clock.
        calls: The number of calls.
        tokens: The number of tokens.
        usd: The cost in US dollars.
    """

    since: float
    last: float
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


class _Window:
    """Counts the calls, tokens and US dollars of the last *window_seconds* (a sliding window).

    The window has at most *max_buckets* buckets. A bucket is removed once all its amounts are older
    than *window_seconds*.
    """

    def __init__(self, window_seconds: float, max_buckets: int) -> None:
        self._seconds = window_seconds
        self._max_buckets = max_buckets
        self._buckets: deque[_Bucket] = deque()

    def open_bucket(self, now: float) -> _Bucket:
        """Return the bucket for amounts that are spent at the time *now*.

        A new bucket is opened when the last bucket is *window_seconds* / *max_buckets* old.
        """
        self._remove_old_buckets(now)
        if not self._buckets or self._buckets[-1].since <= now - self._seconds / self._max_buckets:
            self._buckets.append(_Bucket(now, now))
        self._buckets[-1].last = now
        return self._buckets[-1]

    def list_recent_buckets(self, now: float) -> list[_Bucket]:
        """Return the buckets to which an amount was added in the last *window_seconds*."""
        self._remove_old_buckets(now)
        return list(self._buckets)

    def _remove_old_buckets(self, now: float) -> None:
        while self._buckets and self._buckets[0].last <= now - self._seconds:
            self._buckets.popleft()


class Reservation:
    """The cost reserved for one call, until `record_actual_cost` replaces it with the actual cost.

    Attributes:
        tokens: The reserved tokens; after `record_actual_cost`, the spent tokens.
        usd: The reserved US dollars; after `record_actual_cost`, the spent US dollars.
    """

    __slots__ = ("_bucket", "_calls", "_meter", "tokens", "usd")

    def __init__(self, meter: Meter, bucket: _Bucket, tokens: int, usd: float) -> None:
        self._meter = meter
        self._bucket = bucket
        self._calls = 1
        self.tokens = tokens
        self.usd = usd

    def record_actual_cost(self, tokens: int, usd: float, *, calls: int = 1) -> None:
        """Replace the reserved amounts with the amounts that were spent.

        An impossible amount is ignored, and the reserved amount stays: a negative or infinite
        number, NaN, or more than `MOST_TOKENS` tokens.

        Args:
            tokens: The spent tokens.
            usd: The spent US dollars.
            calls: How many calls were made, including retries. Retries count as made now.
        """
        tokens = tokens if 0 <= tokens <= MOST_TOKENS else self.tokens
        usd = usd if 0 <= usd < inf else self.usd
        calls = max(self._calls, calls)
        self._meter._add_spending(
            self._bucket, tokens - self.tokens, usd - self.usd, calls - self._calls
        )
        self._calls, self.tokens, self.usd = calls, tokens, usd


class Meter:
    """Counts the calls of the last minute, and the tokens and money of the last 24 hours.

    The highest possible cost of a call is counted before the call begins, so that concurrent calls
    cannot exceed a budget together. An old amount never stops counting too early, but may count
    slightly too long: calls by 1 second; tokens and dollars by 1 minute. A forked process
    continues with its parent's counts. Thread-safe.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls = _Window(_MINUTE, _BUCKETS_OF_CALLS)
        self._spent = _Window(_DAY, _BUCKETS_OF_SPENDING)
        self._lock = make_lock()

    def describe_exceeded_limit(
        self, budget: BudgetSettings, *, tokens: int = 0, usd: float = 0.0
    ) -> str:
        """Return a sentence about the limit of *budget* that one more call would exceed.

        Returns ``""`` if *budget* allows the call.

        Args:
            budget: The limits.
            tokens: The highest possible number of tokens of the call.
            usd: The highest possible cost of the call, in US dollars.
        """
        with self._lock:
            return self._find_exceeded_limit(budget, tokens, usd)[0]

    def sum_calls_tokens_usd(self) -> tuple[int, int, float]:
        """Return the calls of the last minute, and the tokens and dollars of the last 24 hours."""
        with self._lock:
            now = self._clock()
            calls = sum(bucket.calls for bucket in self._calls.list_recent_buckets(now))
            recent = self._spent.list_recent_buckets(now)
        return calls, sum(bucket.tokens for bucket in recent), sum(bucket.usd for bucket in recent)

    def reserve_cost(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Reserve *tokens* tokens and *usd* US dollars of *budget* for one call.

        Raises:
            ModelError: ``over_budget``: the call would exceed a limit. If this is the limit of
                calls per minute, ``retry_after`` is the number of seconds to wait.
        """
        with self._lock:
            shortage, wait = self._find_exceeded_limit(budget, tokens, usd)
            if shortage:
                raise ModelError("over_budget", shortage, retry_after=wait)
            # Checked and counted under one lock, so that two callers cannot use the same budget.
            now = self._clock()
            self._calls.open_bucket(now).calls += 1
            bucket = self._spent.open_bucket(now)
            bucket.tokens += tokens
            bucket.usd += usd
            return Reservation(self, bucket, tokens, usd)

    def _find_exceeded_limit(
        self, budget: BudgetSettings, tokens: int, usd: float
    ) -> tuple[str, float | None]:
        """Return which limit one more call would exceed, and how many seconds to wait.

        Returns:
            shortage: A sentence that names the limit; ``""`` if the budget allows the call.
            wait: The seconds until the call may be made; ``None`` unless the limit is the calls per
                minute.
        """
        now = self._clock()
        most_calls = budget.max_llm_calls_per_minute
        if (
            most_calls is not None
            and (
                excess := sum(bucket.calls for bucket in self._calls.list_recent_buckets(now))
                - most_calls
            )
            >= 0
        ):
            shortage = (
                f"budget.maxLlmCallsPerMinute allows {most_calls:,} language model calls per minute"
            )
            return shortage, self._compute_wait_seconds(now, excess) if most_calls else None
        if budget.max_tokens is None and budget.max_usd is None:
            return "", None
        recent = self._spent.list_recent_buckets(now)
        if (
            budget.max_tokens is not None
            and sum(bucket.tokens for bucket in recent) + tokens > budget.max_tokens
        ):
            return f"budget.maxTokens allows {budget.max_tokens:,} tokens in 24 hours", None
        if (
            budget.max_usd is not None
            and sum(bucket.usd for bucket in recent) + usd > budget.max_usd
        ):
            return f"budget.maxUsd allows {budget.max_usd:g} US dollars in 24 hours", None
        return "", None

    def _compute_wait_seconds(self, now: float, excess_calls: int) -> float:
        """Return in how many seconds one more call is allowed.

        *excess_calls* is the number of calls above the limit in the last minute.
        """
        for bucket in self._calls.list_recent_buckets(now):
            excess_calls -= bucket.calls
            if excess_calls < 0:
                return bucket.last + _MINUTE - now
        return _MINUTE

    def _add_spending(self, bucket: _Bucket, tokens: int, usd: float, calls: int) -> None:
        with self._lock:
            bucket.tokens += tokens
            bucket.usd += usd
            if calls:
                self._calls.open_bucket(self._clock()).calls += calls


METER: Final = Meter()
"""The meter of this process. All middlewares check their budgets with it."""
