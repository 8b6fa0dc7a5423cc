"""The charts of what quality costs: a point a system, and the line of those that nothing cheaper equals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from qtmiddleware.evaluation import PRIMARY, Comparison, SystemScore
from qtmiddleware.reporting.bars import kind
from qtmiddleware.reporting.labels import Anchor, Box, Placed, placed
from qtmiddleware.reporting.scales import Axis, axis, is_known
from qtmiddleware.reporting.wording import fitted, short, width_of

FONT: Final = 12.0
RADIUS: Final = 5.5
_LABEL_WIDTH: Final = 13.0
"""The longest label, in units of its font's size."""
_TITLE_LENGTH: Final = 80


@dataclass(frozen=True, slots=True)
class Point:
    """One system: its place, how it did, and its label, where there was room for one."""

    kind: str
    title: str
    x: float
    y: float
    text: str
    label: Placed | None


@dataclass(frozen=True, slots=True)
class Scatter:
    """The whole chart, in pixels; *frontier* is the path of the best that is to be had for a price.

    *unknown* are the names of the systems whose price is not known.
    """

    width: float
    height: float
    area: Box
    across: Axis
    up: Axis
    points: tuple[Point, ...]
    frontier: str
    unknown: tuple[str, ...]


def frontier(prices: Sequence[float], qualities: Sequence[float]) -> list[int]:
    """The places of those that nothing as cheap is better than, the cheapest first (Pareto)."""
    found: list[int] = []
    for place in sorted(range(len(prices)), key=lambda it: (prices[it], -qualities[it])):
        if not found or qualities[place] > qualities[found[-1]]:
            found.append(place)
    return found


def scatter(
    comparison: Comparison,
    price: Callable[[SystemScore], float | None],
    told: Callable[[float | None], str],
    width: float,
    height: float,
) -> Scatter:
    """nDCG@10 against the *price* of each system, which *told* turns into text."""
    area = Box(48.0, 20.0, width - 14.0, height - 44.0)
    known: list[tuple[SystemScore, float]] = []
    unknown: list[str] = []
    for score in comparison.systems:
        paid = price(score)
        if not is_known(paid):
            unknown.append(short(score.name, _TITLE_LENGTH))
        else:
            known.append((score, paid))
    qualities = [score.means[PRIMARY] for score, _ in known]
    # Some room around, so that no point lies upon an axis.
    across = axis([paid for _, paid in known], area.left + 12.0, area.right - 12.0, count=5)
    up = axis(qualities, area.bottom - 12.0, area.top + 12.0, count=5, zero=False)
    places = [(across.scale(paid), up.scale(quality)) for (_, paid), quality in zip(known, qualities, strict=True)]
    best = frontier([paid for _, paid in known], qualities)
    steps = _steps([places[it] for it in best], area.right)
    texts = [fitted(score.name, _LABEL_WIDTH) for score, _ in known]
    order = [*best, *sorted(set(range(len(known))) - set(best), key=lambda it: places[it][1])]
    anchors = [Anchor(*places[it], RADIUS, FONT * width_of(texts[it]) + 2.0, FONT + 3.0) for it in order]
    labels = dict(zip(order, placed(anchors, area, _boxes(steps)), strict=True))
    points = [
        Point(
            kind=kind(comparison, score),
            title=f"{short(score.name, _TITLE_LENGTH)}: {told(paid)}, {PRIMARY} {quality:.3f}",
            x=places[it][0],
            y=places[it][1],
            text=texts[it],
            label=labels[it],
        )
        for it, ((score, paid), quality) in enumerate(zip(known, qualities, strict=True))
    ]
    path = "M" + "L".join(f"{x:g},{y:g}" for x, y in steps) if steps else ""
    return Scatter(width, height, area, across, up, tuple(points), path, tuple(unknown))


def _steps(places: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """The corners of the stairs through *places*, on to *end*: until one pays for the next, one has the last."""
    corners: list[tuple[float, float]] = []
    for x, y in places:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return [*corners, (end, corners[-1][1])] if corners else []


def _boxes(corners: Sequence[tuple[float, float]]) -> list[Box]:
    """The stairs as thin boxes."""
    return [
        Box(min(x, after_x) - 1.0, min(y, after_y) - 1.0, max(x, after_x) + 1.0, max(y, after_y) + 1.0)
        for (x, y), (after_x, after_y) in pairwise(corners)
    ]
