"""Budgets: what the calls of language models in this process cost, and whether another one may be made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

from qtmiddleware.config.settings import BudgetSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.forking import ForkLock

MOST_TOKENS: Final = 10**12
"""More than any call can come to."""
_MINUTE: Final = 60.0
# Into how many parts a window is divided: calls to a second, a day of tokens and money to a minute.
_PARTS_OF_CALLS: Final = 60
_PARTS_OF_SPENDING: Final = 1_440


@dataclass(slots=True)
class _Part:
    """What was spent between *since* and *last*; calls under way count as expected."""

    since: float
    last: float
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


class _Window:
    """What was spent within the last *seconds*, in so many *parts*; each is forgotten when all of it is that old."""

    def __init__(self, seconds: float, parts: int) -> None:
        self.seconds = seconds
        self._most = parts
        self._parts: deque[_Part] = deque()

    def current(self, now: float) -> _Part:
        """The part to add to."""
        self._forget(now)
        if not self._parts or self._parts[-1].since <= now - self.seconds / self._most:
            self._parts.append(_Part(now, now))
        self._parts[-1].last = now
        return self._parts[-1]

    def recent(self, now: float, seconds: float) -> list[_Part]:
        """The parts of the last *seconds*, which are no more than those of the window."""
        self._forget(now)
        return [part for part in self._parts if part.last > now - seconds]

    def _forget(self, now: float) -> None:
        while self._parts and self._parts[0].last <= now - self.seconds:
            self._parts.popleft()


class Reservation:
    """What one call may cost at most, until `settle` says what it did cost."""

    __slots__ = ("_calls", "_meter", "_part", "tokens", "usd")

    def __init__(self, meter: Meter, part: _Part, tokens: int, usd: float) -> None:
        self._meter = meter
        self._part = part
        self._calls = 1
        self.tokens = tokens
        self.usd = usd

    def settle(self, tokens: int, usd: float, *, calls: int = 1) -> None:
        """Replace the expected tokens and US dollars by those spent; *calls* beyond those counted count as made now.

        Impossible numbers (below 0, infinite, not a number, above `MOST_TOKENS`) are ignored: what
        was expected stays.
        """
        tokens = tokens if 0 <= tokens <= MOST_TOKENS else self.tokens
        usd = usd if 0 <= usd < inf else self.usd
        calls = max(self._calls, calls)
        self._meter._settle(self._part, tokens - self.tokens, usd - self.usd, calls - self._calls)
        self._calls, self.tokens, self.usd = calls, tokens, usd


class Meter:
    """Counts calls over the last minute, tokens and money over the last hours. Thread-safe.

    A call is counted with what it may cost at most before it is made, so that many at once cannot
    go beyond a budget together. Nothing is forgotten early, but calls up to a second late and the
    rest up to a minute, or 1/1440 of the longest budget's hours where that is more. A forked
    process goes on from what its parent had spent.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls = _Window(_MINUTE, _PARTS_OF_CALLS)
        # As long as the longest budget looks back.
        self._spent = _Window(_MINUTE, _PARTS_OF_SPENDING)
        self._lock = ForkLock()

    def find_shortage(self, budget: BudgetSettings, *, tokens: int = 0, usd: float = 0.0) -> str:
        """What *budget* has no room for, as a sentence; ``""`` where one more call with so much may be made."""
        with self._lock.free:
            return self._find_shortage(budget, tokens, usd)[0]

    def sum_spending(self, hours: float) -> tuple[int, int, float]:
        """The calls of the last minute, and the tokens and US dollars of the last *hours*."""
        with self._lock.free:
            now, seconds = self._clock(), hours * 3600.0
            calls = sum(it.calls for it in self._calls.recent(now, _MINUTE))
            recent = self._spent.recent(now, seconds)
        return calls, sum(it.tokens for it in recent), sum(it.usd for it in recent)

    def reserve(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Count one call of at most so many *tokens* and US dollars; raises `ModelError` where *budget* has no room.

        Its ``retry_after`` says when a call may be made again, where that is the calls' own minute.
        """
        with self._lock.free:
            lacking, wait = self._find_shortage(budget, tokens, usd)
            if lacking:
                raise ModelError("over_budget", lacking, retry_after=wait)
            now = self._clock()
            self._calls.current(now).calls += 1
            part = self._spent.current(now)
            part.tokens += tokens
            part.usd += usd
            return Reservation(self, part, tokens, usd)

    def _find_shortage(
        self, budget: BudgetSettings, tokens: int, usd: float
    ) -> tuple[str, float | None]:
        """What is lacking, and in how many seconds it is not, where that is a matter of a minute."""
        now, seconds = self._clock(), budget.hours * 3600.0
        self._spent.seconds = max(self._spent.seconds, seconds)
        most = budget.max_llm_calls_per_minute
        if (
            most is not None
            and (excess := sum(it.calls for it in self._calls.recent(now, _MINUTE)) - most) >= 0
        ):
            said = f"budget.maxLlmCallsPerMinute allows {most:,} language model calls per minute"
            return said, self._find_wait(now, excess) if most else None
        if budget.max_tokens is None and budget.max_usd is None:
            return "", None
        recent = self._spent.recent(now, seconds)
        if (
            budget.max_tokens is not None
            and sum(it.tokens for it in recent) + tokens > budget.max_tokens
        ):
            return (
                f"budget.maxTokens allows {budget.max_tokens:,} tokens in {budget.hours:g} hours",
                None,
            )
        if budget.max_usd is not None and sum(it.usd for it in recent) + usd > budget.max_usd:
            return (
                f"budget.maxUsd allows {budget.max_usd:g} US dollars in {budget.hours:g} hours",
                None,
            )
        return "", None

    def _find_wait(self, now: float, excess: int) -> float:
        """In how many seconds more than *excess* of the calls of the last minute are older than that."""
        for part in self._calls.recent(now, _MINUTE):
            excess -= part.calls
            if excess < 0:
                return part.last + _MINUTE - now
        return _MINUTE

    def _settle(self, part: _Part, tokens: int, usd: float, calls: int) -> None:
        with self._lock.free:
            part.tokens += tokens
            part.usd += usd
            if calls:
                self._calls.current(self._clock()).calls += calls


METER: Final = Meter()
"""The meter of this process: the budgets of all its middlewares are compared with the same sums."""
