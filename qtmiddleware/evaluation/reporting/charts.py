"""The charts of the page as numbers and texts: bars of quality, each question's gain, quality against its cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor, isfinite, log10
from typing import Final, NamedTuple

from qtmiddleware.evaluation import PRIMARY, TOLERANCE, Comparison, SystemScore
from qtmiddleware.evaluation.reporting import figures

BAR_FONT: Final = 13.0
POINT_FONT: Final = 12.0
MARK_FONT: Final = 11.5
MARK: Final = 17.0
"""The height of a mark, and the width of one with a single digit."""
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_LARGEST, _SMALLEST = 1e15, 1e-8
"""Nothing that is measured lies beyond; what is smaller is nothing."""
_TITLE_LENGTH: Final = 80
_THICK: Final = 16.0
_BOLD: Final = 1.12
_GAIN_WIDTH: Final = 142.0
"""The room for a gain and its interval."""
_NARROWEST: Final = 3.0
"""Strokes thinner than this cannot be told apart, so that several questions share one."""
_COST_SIZE: Final = (380.0, 330.0)


class Size(StrEnum):
    """Charts with much text are drawn for a wide and for a narrow screen; the page shows the one that fits."""

    WIDE = "wide"
    NARROW = "narrow"

    @property
    def width(self) -> float:
        """The width of such a chart in pixels."""
        return 920.0 if self is Size.WIDE else 340.0


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis: *low* lies at *start*, *high* at *end*; *digits* are those that tell its *ticks* apart."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    digits: int

    def place(self, number: float) -> float:
        """Where *number* lies, to a tenth of a pixel; at the nearer end if it is beyond."""
        share = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def label(self, tick: float) -> str:
        """*tick* as it is written beside its mark."""
        text = f"{tick:,.{self.digits}f}"
        return text.removeprefix("-") if tick == 0 else text


def make_axis(numbers: Iterable[float], start: float, end: float, *, count: int = 5, zero: bool = True) -> Axis:
    """An axis from *start* to *end* that holds all *numbers* between round ones, about *count* of them.

    With *zero* it holds 0 as well. Numbers that are equal get room on both sides; those not finite are left out.
    """
    finite = (min(max(number, -_LARGEST), _LARGEST) for number in numbers if isfinite(number))
    held = [number if abs(number) > _SMALLEST else 0.0 for number in finite] or [0.0]
    if zero:
        held.append(0.0)
    low, high = min(held), max(held)
    if high - low <= max(_SMALLEST, 1e-9 * max(abs(low), abs(high))):
        low, high = (low, max(1.0, 2 * abs(low))) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    raw = (high - low) / max(1, count)
    power = float(10.0 ** floor(log10(raw)))
    step = power * next(step for step in _STEPS if step * power >= raw * (1 - 1e-9))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = tuple(round(place * step, 12) for place in range(first, last + 1))
    return Axis(first * step, last * step, start, end, ticks, max(0, -floor(log10(step) + 1e-9)))


def rank_systems(comparison: Comparison) -> list[SystemScore]:
    """All systems, the best quality first; those that are equal stay as they were compared."""
    return sorted(comparison.systems, key=lambda score: -score.means[PRIMARY])


def classify(comparison: Comparison, score: SystemScore) -> str:
    """How a system did: ``base``, ``better`` or ``worse`` by more than chance, or ``same``."""
    if score.name == comparison.baseline:
        return "base"
    if not score.difference.is_significant or not score.difference.gain:
        return "same"
    return "better" if score.difference.gain > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Bar:
    """One system's bar: its place, its whisker from *low* to *high*, and its texts at *text_y*."""

    kind: str
    name: str
    title: str
    y: float
    width: float
    low: float | None
    high: float | None
    text_y: float
    value: str
    gain: str


@dataclass(frozen=True, slots=True)
class Bars:
    """The chart of quality, in pixels: bars begin at *left*; *line* is the path of the baseline."""

    size: Size
    width: float
    height: float
    left: float
    name_x: float
    value_x: float
    thick: float
    bars: tuple[Bar, ...]
    line: str
    axis: Axis
    bottom: float


def draw_bars(comparison: Comparison, size: Size) -> Bars:
    """A bar for each system with the interval of its gain, the best first; a narrow chart has names above the bars."""
    is_narrow = size is Size.NARROW
    left, right, top = (0.0, size.width - 8.0, 26.0) if is_narrow else (200.0, size.width - 198.0, 26.0)
    row, above = (46.0, 20.0) if is_narrow else (34.0, 6.0)
    room = size.width - _GAIN_WIDTH - 50.0 if is_narrow else left - 12.0
    scores = rank_systems(comparison)
    base = comparison[comparison.baseline].means[PRIMARY]
    reached = [base + score.difference.high for score in scores] + [score.means[PRIMARY] for score in scores]
    axis = make_axis((min(1.0, number) for number in reached), left, right, count=4 if is_narrow else 8)
    bars = []
    for place, score in enumerate(scores):
        y = top + place * row + above
        is_base = score.name == comparison.baseline
        value = figures.format_measure(score.means[PRIMARY])
        gain = "baseline" if is_base else figures.format_gain(score.difference)
        bars.append(
            Bar(
                kind=classify(comparison, score),
                name=figures.fit_text(score.name, room / (_BOLD * BAR_FONT)),
                title=f"{figures.shorten(score.name, _TITLE_LENGTH)}: {PRIMARY} {value}, {gain}",
                y=y,
                width=max(0.0, round(axis.place(score.means[PRIMARY]) - left, 1)),
                low=None if is_base else axis.place(base + score.difference.low),
                high=None if is_base else axis.place(base + score.difference.high),
                text_y=y - 6.0 if is_narrow else y + _THICK - 3.5,
                value=value,
                gain=gain,
            )
        )
    bottom = top + len(scores) * row
    at = axis.place(base)
    # Names lie between narrow bars, and a line through them would strike them out.
    reaches = [(bar.y - 3.0, bar.y + _THICK + 3.0) for bar in bars] if is_narrow else [(top - 12.0, bottom)]
    return Bars(
        size=size,
        width=size.width,
        height=bottom + 24.0,
        left=left,
        name_x=0.0 if is_narrow else left - 10.0,
        value_x=size.width - _GAIN_WIDTH,
        thick=_THICK,
        bars=tuple(bars),
        line="".join(f"M{at:g} {start:g}V{end:g}" for start, end in reaches),
        axis=axis,
        bottom=bottom,
    )


@dataclass(frozen=True, slots=True)
class Gains:
    """The chart of wins and losses, in pixels: *helped* and *hurt* are paths of upright strokes that begin at zero.

    *shared* is how many questions a stroke stands for; it is as long as their mean.
    """

    size: Size
    width: float
    height: float
    left: float
    right: float
    up: Axis
    helped: str
    hurt: str
    stroke: float
    shared: int


def count_outcomes(score: SystemScore) -> tuple[int, int, int]:
    """How many questions were helped, left as they were, and hurt."""
    helped = sum(gain > TOLERANCE for gain in score.gains.values())
    hurt = sum(gain < -TOLERANCE for gain in score.gains.values())
    return helped, len(score.gains) - helped - hurt, hurt


def draw_gains(score: SystemScore, reach: tuple[float, float], size: Size) -> Gains:
    """What each question gained or lost in points, most helped first; *reach* is the least and most of any system."""
    height = 260.0 if size is Size.WIDE else 220.0
    left, right = 44.0, size.width - 4.0
    up = make_axis((100 * gain for gain in reach), height - 8.0, 8.0, count=4)
    gains = sorted((100 * gain for gain in score.gains.values()), reverse=True)
    shared = max(1, ceil(len(gains) * _NARROWEST / (right - left)))
    each = (right - left) / max(1, len(gains))
    paths: dict[bool, list[str]] = {True: [], False: []}
    for start in range(0, len(gains), shared):
        part = gains[start : start + shared]
        mean = sum(part) / len(part)
        if abs(mean) > 100 * TOLERANCE:
            x = round(left + each * (start + len(part) / 2), 1)
            paths[mean > 0].append(f"M{x:g} {up.place(0.0):g}V{up.place(mean):g}")
    # A gap between strokes while there is room for one, and none so thick that a few look like blocks.
    stroke = round(min(28.0, each * shared * (0.8 if each * shared > 4 else 1.0)), 2)
    helped, hurt = "".join(paths[True]), "".join(paths[False])
    return Gains(size, size.width, height, left, right, up, helped, hurt, stroke, shared)


class Box(NamedTuple):
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Point:
    """One system: its *number*, 1 for the best quality of all, how it did, and where it lies."""

    number: int
    name: str
    kind: str
    title: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Mark:
    """The numbers of *points* that lie upon each other, in a round field *width* wide around *x*, *y*.

    *kind* is theirs, or ``mixed``.
    """

    points: tuple[Point, ...]
    kind: str
    title: str
    text: str
    x: float
    y: float
    width: float

    def covers(self, other: Mark) -> bool:
        """Whether one lies upon the other; corners are round, so that those of their boxes may touch."""
        is_beside = abs(self.x - other.x) >= (self.width + other.width) / 2 - 2.0
        return not is_beside and abs(self.y - other.y) < MARK - 3.0


@dataclass(frozen=True, slots=True)
class Scatter:
    """The chart of quality against a cost, in pixels: *frontier* is the path of the best that a cost buys.

    *name* and *unit* are the cost's; *unknown* are the names of the systems whose cost is not known.
    """

    name: str
    unit: str
    width: float
    height: float
    area: Box
    across: Axis
    up: Axis
    points: tuple[Point, ...]
    marks: tuple[Mark, ...]
    frontier: str
    unknown: tuple[str, ...]


def draw_costs(comparison: Comparison) -> tuple[Scatter, ...]:
    """Quality against money, or model calls where no price is known, and against time."""
    charts = []
    if any(figures.is_known(score.cost_usd) and score.cost_usd for score in comparison.systems):
        money = "US dollars per 1,000 questions"
        charts.append(draw_scatter(comparison, "price", money, lambda it: it.usd_per_thousand, figures.format_dollars))
    elif any(score.llm_calls for score in comparison.systems):
        calls = "model calls per question"
        charts.append(
            draw_scatter(comparison, "calls", calls, lambda it: it.llm_calls / len(it.runs), figures.format_rate)
        )
    time = "milliseconds added (median)"
    return (*charts, draw_scatter(comparison, "time", time, lambda it: it.added_ms.p50, figures.format_duration))


def draw_scatter(
    comparison: Comparison,
    name: str,
    unit: str,
    cost: Callable[[SystemScore], float | None],
    format_cost: Callable[[float | None], str],
) -> Scatter:
    """nDCG@10 against the *cost* of each system."""
    width, height = _COST_SIZE
    area = Box(48.0, 20.0, width - 14.0, height - 44.0)
    ranked = [(number, score, cost(score)) for number, score in enumerate(rank_systems(comparison), 1)]
    known = [(number, score, paid) for number, score, paid in ranked if figures.is_known(paid)]
    # Some room around, so that no point lies upon an axis.
    across = make_axis([paid for _, _, paid in known], area.left + 12.0, area.right - 12.0)
    qualities = [score.means[PRIMARY] for _, score, _ in known]
    up = make_axis(qualities, area.bottom - 12.0, area.top + 12.0, zero=False)
    points = tuple(
        Point(
            number=number,
            name=score.name,
            kind=classify(comparison, score),
            title=f"{figures.shorten(score.name, _TITLE_LENGTH)}: {format_cost(paid)}, "
            f"{PRIMARY} {figures.format_measure(score.means[PRIMARY])}",
            x=across.place(paid),
            y=up.place(score.means[PRIMARY]),
        )
        for number, score, paid in known
    )
    best = [points[place] for place in find_frontier([paid for _, _, paid in known], qualities)]
    # Stairs: until one pays for the next, one has the last.
    steps = "".join(f"H{point.x:g}V{point.y:g}" for point in best[1:])
    return Scatter(
        name=name,
        unit=unit,
        width=width,
        height=height,
        area=area,
        across=across,
        up=up,
        points=points,
        marks=mark_points(points, area),
        frontier=f"M{best[0].x:g} {best[0].y:g}{steps}H{area.right:g}" if best else "",
        unknown=tuple(score.name for _, score, paid in ranked if not figures.is_known(paid)),
    )


def find_frontier(costs: Sequence[float], qualities: Sequence[float]) -> list[int]:
    """The places of those that nothing as cheap is better than, the cheapest first (Pareto)."""
    frontier: list[int] = []
    for place in sorted(range(len(costs)), key=lambda it: (costs[it], -qualities[it])):
        if not frontier or qualities[place] > qualities[frontier[-1]]:
            frontier.append(place)
    return frontier


def mark_points(points: Iterable[Point], area: Box) -> tuple[Mark, ...]:
    """The marks of all *points* within *area*; those that would lie upon each other share one, in their midst."""
    marks: list[Mark] = []
    for point in points:
        mark = _make_mark([point], area)
        while covered := [other for other in marks if other.covers(mark)]:
            marks = [other for other in marks if other not in covered]
            mark = _make_mark([*mark.points, *(it for other in covered for it in other.points)], area)
        marks.append(mark)
    return tuple(marks)


def _make_mark(points: Iterable[Point], area: Box) -> Mark:
    ordered = tuple(sorted(points, key=lambda point: point.number))
    kinds = {point.kind for point in ordered}
    font = _BOLD * MARK_FONT
    text = figures.fit_text(_join_numbers([point.number for point in ordered]), (area.right - area.left) / font - 1.0)
    width = max(MARK, round(font * figures.estimate_width(text) + 6.0, 1))
    middle = sum(point.x for point in ordered) / len(ordered)
    return Mark(
        points=ordered,
        kind=ordered[0].kind if len(kinds) == 1 else "mixed",
        title="; ".join(point.title for point in ordered),
        text=text,
        x=round(min(max(middle, area.left + width / 2), area.right - width / 2), 1),
        y=round(sum(point.y for point in ordered) / len(ordered), 1),
        width=width,
    )


def _join_numbers(numbers: Sequence[int]) -> str:
    """Ascending *numbers* with commas between, three and more in a row as ``1–3``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
