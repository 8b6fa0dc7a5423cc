"""The chart of wins and losses: what every question gained or lost by one system, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qtmiddleware.evaluation import TOLERANCE, SystemScore
from qtmiddleware.reporting.scales import Axis, axis

_NARROWEST: Final = 3.0
"""Strokes thinner than this cannot be told apart, so that several questions share one."""


@dataclass(frozen=True, slots=True)
class Gains:
    """The whole chart, in pixels: *helped* and *hurt* are paths of upright strokes, *zero* the line they stand on.

    *shared* is how many questions a stroke stands for; it is as long as their mean.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    zero: float
    up: Axis
    helped: str
    hurt: str
    stroke: float
    shared: int


def order(score: SystemScore) -> list[str]:
    """The ids of the questions, those helped most first; those that are equal stay as they were asked."""
    return sorted(score.gains, key=lambda question: -score.gains[question])


def counts(score: SystemScore) -> tuple[int, int, int]:
    """How many questions were helped, left as they were, and hurt."""
    helped = sum(gain > TOLERANCE for gain in score.gains.values())
    hurt = sum(gain < -TOLERANCE for gain in score.gains.values())
    return helped, len(score.gains) - helped - hurt, hurt


def gains(score: SystemScore, reach: tuple[float, float], width: float, height: float) -> Gains:
    """The chart of *score* in points; *reach*, the least and the greatest gain of all systems, is on its scale."""
    left, right, top, bottom = 44.0, width - 4.0, 8.0, height - 8.0
    up = axis((100 * gain for gain in reach), bottom, top, count=4)
    sorted_gains = sorted((100 * gain for gain in score.gains.values()), reverse=True)
    shared = max(1, round(len(sorted_gains) * _NARROWEST / (right - left) + 0.499))
    means = [_mean(sorted_gains[start : start + shared]) for start in range(0, len(sorted_gains), shared)]
    each = (right - left) / max(1, len(sorted_gains))
    zero = up.scale(0.0)
    helped: list[str] = []
    hurt: list[str] = []
    for place, gain in enumerate(means):
        if abs(gain) > 100 * TOLERANCE:
            start, end = place * shared, min(len(sorted_gains), (place + 1) * shared)
            upright = f"M{round(left + each * (start + end) / 2, 1):g} {zero:g}V{up.scale(gain):g}"
            (helped if gain > 0 else hurt).append(upright)
    # A gap between strokes while there is room for one, and none so thick that a few look like blocks.
    stroke = round(min(28.0, each * shared * (0.8 if each * shared > 4 else 1.0)), 2)
    return Gains(width, height, left, right, top, bottom, zero, up, "".join(helped), "".join(hurt), stroke, shared)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
