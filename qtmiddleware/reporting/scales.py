"""Scales that carry numbers to places on a page, and round numbers to mark on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Final, TypeGuard

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_LARGEST, _SMALLEST = 1e15, 1e-8
"""Nothing that is measured lies beyond; what is smaller is nothing."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight scale: *low* lies at *start*, *high* at *end*; what lies outside is drawn at the nearer end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, number: float) -> float:
        """The place of *number*, to a tenth of a pixel."""
        share = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale with the numbers to mark on it; *digits* are those behind the point that tell them apart."""

    scale: Scale
    ticks: tuple[float, ...]
    digits: int

    def label(self, tick: float) -> str:
        """*tick* as it is written beside its mark."""
        text = f"{tick:,.{self.digits}f}"
        return text.removeprefix("-") if tick == 0 else text


def is_known(number: float | None) -> TypeGuard[float]:
    """Whether *number* is there and can be drawn."""
    return number is not None and isfinite(number)


def axis(numbers: Iterable[float], start: float, end: float, *, count: int = 5, zero: bool = True) -> Axis:
    """An axis from *start* to *end* that holds all *numbers* between round ones, about *count* of them.

    With *zero* it holds 0 as well. Numbers that are equal get room on both sides.
    """
    finite = (min(max(number, -_LARGEST), _LARGEST) for number in numbers if isfinite(number))
    held = [number if abs(number) > _SMALLEST else 0.0 for number in finite] or [0.0]
    if zero:
        held.append(0.0)
    low, high = min(held), max(held)
    if high - low <= max(_SMALLEST, 1e-9 * max(abs(low), abs(high))):
        low, high = (low, max(1.0, 2 * abs(low))) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    step = _step((high - low) / max(1, count))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    marked = tuple(round(place * step, 12) for place in range(first, last + 1))
    return Axis(Scale(first * step, last * step, start, end), marked, max(0, -floor(log10(step) + 1e-9)))


def _step(raw: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below *raw*."""
    power = float(10.0 ** floor(log10(raw)))
    return power * next(step for step in _STEPS if step * power >= raw * (1 - 1e-9))
