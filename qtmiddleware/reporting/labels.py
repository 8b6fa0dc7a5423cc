"""Labels beside points, so that none lies upon another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, hypot, inf, pi, sin
from typing import Final

_GAP: Final = 4.0
_RINGS: Final = (0.0, 8.0, 16.0, 26.0, 38.0, 52.0, 68.0, 86.0, 106.0, 130.0, 160.0, 200.0, 250.0, 310.0)
_DIRECTIONS: Final = 16
_CROSSING: Final = 16.0
"""A label upon a line is as bad as one that lies so much farther off."""
_DOUBTFUL: Final = 30.0
"""A label nearer to the point of another is as bad as one that lies so much farther off."""
_CLEAR: Final = 3.5
"""By how much its own point must be the nearer one to be told from another."""
_LEADER: Final = 14.0
"""A label farther off than this gets a line to its point."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether both cover some place."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def within(self, other: Box) -> bool:
        """Whether *other* holds all of it."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The place of it that is nearest to *x*, *y*."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def distance(self, x: float, y: float) -> float:
        """How far *x*, *y* lies from it."""
        near = self.nearest(x, y)
        return hypot(near[0] - x, near[1] - y)

    def middles(self, x: float, y: float) -> float:
        """How far *x*, *y* lies from the middle of its nearest side, which is where a reader looks for the point."""
        across, down = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        sides = ((self.left, down), (self.right, down), (across, self.top), (across, self.bottom))
        return min(hypot(side[0] - x, side[1] - y) for side in sides)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A point with its *radius* and the size of the label that belongs to it."""

    x: float
    y: float
    radius: float
    width: float
    height: float

    @property
    def box(self) -> Box:
        """What the point covers, with a little room around."""
        reach = self.radius + 1.0
        return Box(self.x - reach, self.y - reach, self.x + reach, self.y + reach)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a label lies: its text has its *side* (``start``, ``middle`` or ``end``, as SVG names them) at *x*.

    *leader* is where a line from its point ends, where it needs one.
    """

    box: Box
    side: str
    x: float
    leader: tuple[float, float] | None


def placed(anchors: Sequence[Anchor], area: Box, lines: Sequence[Box] = ()) -> list[Placed | None]:
    """A place within *area* for the label of each of the *anchors*, those first in the order first served.

    No label lies upon another or upon a point; places upon one of the *lines*, thin boxes, or as near to a stranger's
    point are avoided where there is room. ``None`` where there was no place left.
    """
    taken = [anchor.box for anchor in anchors]
    found: list[Placed | None] = []
    for anchor in anchors:
        box = _best(anchor, anchors, area, taken, lines)
        if box is None:
            found.append(None)
            continue
        taken.append(box)
        leader = box.nearest(anchor.x, anchor.y) if _is_far(box, anchor) else None
        found.append(Placed(box, *_side(box, anchor.x), leader))
    return found


def _best(
    anchor: Anchor, anchors: Sequence[Anchor], area: Box, taken: Sequence[Box], lines: Sequence[Box]
) -> Box | None:
    """The free place that has least against it."""
    best, least = None, inf
    for cost, box in sorted(_candidates(anchor), key=lambda entry: entry[0]):
        if cost >= least:
            break
        if not box.within(area) or any(box.meets(other) for other in taken):
            continue
        against = cost + _CROSSING * any(box.meets(line) for line in lines) + _doubt(box, anchor, anchors)
        against += _DOUBTFUL * (_is_far(box, anchor) and _strikes(box, anchor, taken))
        if against < least:
            best, least = box, against
    return best


def _is_far(box: Box, anchor: Anchor) -> bool:
    return box.distance(anchor.x, anchor.y) > anchor.radius + _LEADER


def _strikes(box: Box, anchor: Anchor, taken: Sequence[Box]) -> bool:
    """Whether the line from the point to *box* would run through another label or point."""
    x, y = box.nearest(anchor.x, anchor.y)
    way = [(anchor.x + (x - anchor.x) * part / 10, anchor.y + (y - anchor.y) * part / 10) for part in range(10)]
    others = (other for other in taken if other != anchor.box)
    return any(other.distance(*place) == 0.0 for other in others for place in way)


def _doubt(box: Box, anchor: Anchor, anchors: Sequence[Anchor]) -> float:
    """What is against *box* because another's point is about as near to it; points in one place are one."""
    away = box.middles(anchor.x, anchor.y)
    strangers = (it for it in anchors if (it.x, it.y) != (anchor.x, anchor.y))
    return _DOUBTFUL if any(box.middles(it.x, it.y) < away + _CLEAR for it in strangers) else 0.0


def _side(box: Box, x: float) -> tuple[str, float]:
    """The side of a label that is nearest to its point, and where it lies: a text is shorter than it may be."""
    if box.left > x:
        return "start", box.left
    return ("end", box.right) if box.right < x else ("middle", (box.left + box.right) / 2)


def _candidates(anchor: Anchor) -> Iterator[tuple[float, Box]]:
    """Places around *anchor* with what is against each: how far off it is, and a little that it is not on the right."""
    for ring in _RINGS:
        for turn in range(_DIRECTIONS):
            across, down = cos(2 * pi * turn / _DIRECTIONS), sin(2 * pi * turn / _DIRECTIONS)
            reach = anchor.radius + _GAP + ring
            # The label's middle, so far out that its nearer edge is at the reach.
            x = anchor.x + across * (reach + anchor.width / 2)
            y = anchor.y + down * (reach + anchor.height / 2)
            box = Box(x - anchor.width / 2, y - anchor.height / 2, x + anchor.width / 2, y + anchor.height / 2)
            yield ring + 4 * (1 - across) + 2 * abs(down), box
