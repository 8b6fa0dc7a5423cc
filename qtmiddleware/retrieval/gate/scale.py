"""How a number compares with those of the queries before it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final

MAX_OBSERVED: Final = 512

# So many observations weighs what is expected before any was made.
PRIOR: Final = 5


class Scale:
    """The latest `MAX_OBSERVED` numbers of one kind, in order.

    Before there are any, they are expected to lie evenly between *low* and *high*; that fades as they come.
    """

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._width = high - low
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def place(self, number: float) -> float:
        """The share of the numbers that are lower, equal ones counting half; remembers *number*."""
        expected = min(1.0, max(0.0, (number - self._low) / self._width))
        lower = (bisect_left(self._ordered, number) + bisect_right(self._ordered, number)) / 2
        place = (lower + PRIOR * expected) / (len(self._ordered) + PRIOR)
        self._recent.append(number)
        insort(self._ordered, number)
        if len(self._recent) > MAX_OBSERVED:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        return place
