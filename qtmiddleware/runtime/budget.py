"""Count what this process spends on language models, and refuse calls that exceed a budget."""

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
"""The largest number of tokens that is believed; no call can use as many."""
_MINUTE: Final = 60.0
# How many parts a window has. A part covers one second of the calls' minute, and one minute of the
# tokens and money of a day.
_PARTS_OF_CALLS: Final = 60
_PARTS_OF_SPENDING: Final = 1_440


@dataclass(slots=True)
class _Part:
    """The calls, tokens and money counted in one part of a time window.

    A running call counts as the most that it may cost.

    Attributes:
        since: When the part began, in seconds on the meter's clock.
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
    """A time window that counts the calls, tokens and money of the last *seconds*.

    The window has at most *part_count* parts. A part is removed once all amounts in it are older
    than *seconds*.
    """

    def __init__(self, seconds: float, part_count: int) -> None:
        self.seconds = seconds
        self._most = part_count
        self._parts: deque[_Part] = deque()

    def open_part(self, now: float) -> _Part:
        """Return the part of the window in which to count spending at the time *now*.

        A new part begins *seconds* / *part_count* after the beginning of the last part.
        """
        self._remove_old_parts(now)
        if not self._parts or self._parts[-1].since <= now - self.seconds / self._most:
            self._parts.append(_Part(now, now))
        self._parts[-1].last = now
        return self._parts[-1]

    def list_recent(self, now: float, seconds: float) -> list[_Part]:
        """Return the parts of the window in which something was spent in the last *seconds*."""
        self._remove_old_parts(now)
        return [part for part in self._parts if part.last > now - seconds]

    def _remove_old_parts(self, now: float) -> None:
        while self._parts and self._parts[0].last <= now - self.seconds:
            self._parts.popleft()


class Reservation:
    """The cost reserved for one call, until `settle` replaces it with the actual cost.

    Attributes:
        tokens: The number of tokens reserved for the call; after `settle`, the number spent.
        usd: The US dollars reserved for the call; after `settle`, the US dollars spent.
    """

    __slots__ = ("_calls", "_meter", "_part", "tokens", "usd")

    def __init__(self, meter: Meter, part: _Part, tokens: int, usd: float) -> None:
        self._meter = meter
        self._part = part
        self._calls = 1
        self.tokens = tokens
        self.usd = usd

    def settle(self, tokens: int, usd: float, *, calls: int = 1) -> None:
        """Replace the reserved tokens and US dollars with the amounts that were spent.

        If *calls* is higher than the number counted so far, the additional calls count as made now.
        An impossible number (negative, infinite, not a number, or more than `MOST_TOKENS` tokens)
        is ignored, and the reserved amount stays.
        """
        tokens = tokens if 0 <= tokens <= MOST_TOKENS else self.tokens
        usd = usd if 0 <= usd < inf else self.usd
        calls = max(self._calls, calls)
        self._meter._add_spending(
            self._part, tokens - self.tokens, usd - self.usd, calls - self._calls
        )
        self._calls, self.tokens, self.usd = calls, tokens, usd


class Meter:
    """Counts the calls of the last minute, and the tokens and money of the last hours.

    Before a call is made, its highest possible cost is counted, so that concurrent calls together
    cannot exceed a budget. No amount is removed too early. Calls are removed up to 1 second late.
    Tokens and money are removed up to 1 minute late, or up to 1/1440 of the longest budget's hours
    if that is more. A forked process continues with the counts of its parent. Thread-safe.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls = _Window(_MINUTE, _PARTS_OF_CALLS)
        # Grows to the hours of the longest budget that is asked about.
        self._spent = _Window(_MINUTE, _PARTS_OF_SPENDING)
        self._lock = ForkLock()

    def find_shortage(self, budget: BudgetSettings, *, tokens: int = 0, usd: float = 0.0) -> str:
        """Return ``""`` if *budget* has room for a call, else a sentence that names the limit.

        Args:
            budget: The limits.
            tokens: The most tokens that one more call may use.
            usd: The most US dollars that one more call may cost.
        """
        with self._lock.free:
            return self._find_shortage(budget, tokens, usd)[0]

    def sum_calls_tokens_usd(self, hours: float) -> tuple[int, int, float]:
        """Return the calls of the last minute, and the tokens and dollars of the last *hours*."""
        with self._lock.free:
            now, seconds = self._clock(), hours * 3600.0
            calls = sum(part.calls for part in self._calls.list_recent(now, _MINUTE))
            recent = self._spent.list_recent(now, seconds)
        return calls, sum(part.tokens for part in recent), sum(part.usd for part in recent)

    def reserve(self, budget: BudgetSettings, *, tokens: int, usd: float) -> Reservation:
        """Count one call that uses at most *tokens* and costs at most *usd* US dollars.

        Raises:
            ModelError: ``over_budget`` if *budget* has no room. If the calls per minute are used
                up, ``retry_after`` is the number of seconds until a call may be made again, else
                ``None``.
        """
        with self._lock.free:
            shortage, wait = self._find_shortage(budget, tokens, usd)
            if shortage:
                raise ModelError("over_budget", shortage, retry_after=wait)
            now = self._clock()
            self._calls.open_part(now).calls += 1
            part = self._spent.open_part(now)
            part.tokens += tokens
            part.usd += usd
            return Reservation(self, part, tokens, usd)

    def _find_shortage(
        self, budget: BudgetSettings, tokens: int, usd: float
    ) -> tuple[str, float | None]:
        """Return which limit one more call would exceed, and the seconds until there is room.

        The limit is described in a sentence, which is ``""`` if no limit would be exceeded. The
        seconds are ``None`` unless the limit is the calls per minute.
        """
        now, seconds = self._clock(), budget.hours * 3600.0
        # Middlewares share this meter: it must remember as long as the longest of their budgets.
        self._spent.seconds = max(self._spent.seconds, seconds)
        most_calls = budget.max_llm_calls_per_minute
        if (
            most_calls is not None
            and (
                excess := sum(part.calls for part in self._calls.list_recent(now, _MINUTE))
                - most_calls
            )
            >= 0
        ):
            shortage = (
                f"budget.maxLlmCallsPerMinute allows {most_calls:,} language model calls per minute"
            )
            return shortage, self._find_wait(now, excess) if most_calls else None
        if budget.max_tokens is None and budget.max_usd is None:
            return "", None
        recent = self._spent.list_recent(now, seconds)
        if (
            budget.max_tokens is not None
            and sum(part.tokens for part in recent) + tokens > budget.max_tokens
        ):
            return (
                f"budget.maxTokens allows {budget.max_tokens:,} tokens in {budget.hours:g} hours",
                None,
            )
        if budget.max_usd is not None and sum(part.usd for part in recent) + usd > budget.max_usd:
            return (
                f"budget.maxUsd allows {budget.max_usd:g} US dollars in {budget.hours:g} hours",
                None,
            )
        return "", None

    def _find_wait(self, now: float, excess: int) -> float:
        """Return the seconds until more than *excess* calls are older than a minute."""
        for part in self._calls.list_recent(now, _MINUTE):
            excess -= part.calls
            if excess < 0:
                return part.last + _MINUTE - now
        return _MINUTE

    def _add_spending(self, part: _Part, tokens: int, usd: float, calls: int) -> None:
        with self._lock.free:
            part.tokens += tokens
            part.usd += usd
            if calls:
                self._calls.open_part(self._clock()).calls += calls


METER: Final = Meter()
"""The meter of this process. All middlewares compare their budgets with its sums."""
