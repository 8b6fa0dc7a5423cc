"""Compute the charts of a report: quality, gains per question, and quality against cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, floor, isfinite, log10
from typing import Final, NamedTuple
from unicodedata import east_asian_width

from qtmiddleware.kit.evaluation import PRIMARY, TOLERANCE, Comparison, SystemScore
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.preprocessing.text import clean_text, shorten_text

GAINS_HEIGHT: Final = 240.0
"""The height of the chart of gains, in pixels."""
MARK_FONT: Final = 11.5
MARK: Final = 17.0
"""The height of a mark with numbers, and the width of a mark with a single digit, in pixels."""
DOT: Final = 11.0
"""The width and height of a mark without numbers, in pixels."""
_CHARACTER: Final = 7.0
"""The approximate width of a character in a mark, in pixels: bold digits, commas, spaces."""
_MARK_LENGTH: Final = 40
"""The largest number of characters in a mark."""
LABEL_FONT: Final = 12.0
_LABEL_HEIGHT: Final = 15.0
_GAP: Final = 3.0
"""The distance between a dot and its name, in pixels."""
_CLEAR: Final = (5.0, 3.5)
"""The smallest distance between a dot and another dot's name, across and down, in pixels.

A closer name would look like the dot's own name.
"""
_NARROW, _WIDE = frozenset("iIjlftr.,:;'|!()[]-/ "), frozenset("mwMW@%&—…")
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_LARGEST, _SMALLEST = 1e15, 1e-8
"""The largest number on an axis, and the smallest. A number below the smallest counts as 0."""


class Box(NamedTuple):
    """A rectangle in a chart, defined by the positions of its four edges."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Return whether this box and *other* overlap; ``False`` if their edges only touch."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not is_beside and self.top < other.bottom and other.top < self.bottom

    def add_margins(self, horizontal_margin: float, vertical_margin: float) -> Box:
        """Return this box, enlarged by a margin on each side.

        Args:
            horizontal_margin: The margin on the left and on the right.
            vertical_margin: The margin at the top and at the bottom.
        """
        return Box(
            self.left - horizontal_margin,
            self.top - vertical_margin,
            self.right + horizontal_margin,
            self.bottom + vertical_margin,
        )

    def contains(self, other: Box) -> bool:
        """Return whether *other* is inside this box. Their edges may touch."""
        is_across = self.left <= other.left and other.right <= self.right
        return is_across and self.top <= other.top and other.bottom <= self.bottom


COSTS: Final = Box(0.0, 0.0, 380.0, 380.0)
"""The whole chart of quality against a cost, in pixels."""
AREA: Final = Box(48.0, 20.0, COSTS.right - 14.0, COSTS.bottom - 44.0)
"""The part of the chart `COSTS` between its axes."""
_LABELLED: Final = Box(AREA.left + 2.0, AREA.top - 4.0, COSTS.right, AREA.bottom - 1.0)
"""The part of the chart `COSTS` in which names may be placed."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis of a chart.

    Attributes:
        low: The smallest number on the axis.
        high: The largest number on the axis.
        start: The position of the smallest number, in pixels or percent.
        end: The position of the largest number, in pixels or percent.
        ticks: The numbers that have a tick.
        digits: The number of decimals in the ticks' labels.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    digits: int

    def compute_position(self, number: float) -> float:
        """Return the position of *number* on the axis, rounded to one decimal.

        A number that is not on the axis gets the position of the nearest end.
        """
        share = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def format_tick(self, tick: float) -> str:
        """Return the label of the tick at the number *tick*, such as ``0.5`` or ``1,000``."""
        text = f"{tick:,.{self.digits}f}"
        return text.removeprefix("-") if tick == 0 else text


def make_axis(
    numbers: Iterable[float],
    start_position: float,
    end_position: float,
    *,
    intervals: int = 5,
    includes_zero: bool = True,
    upper_limit: float = _LARGEST,
) -> Axis:
    """Return an axis that covers all *numbers*, with ticks at round numbers.

    Args:
        numbers: The numbers to cover. Infinite numbers and NaN are ignored. If all numbers are
            equal, the axis extends beyond them.
        start_position: The position of the smallest number on the axis.
        end_position: The position of the largest number on the axis.
        intervals: The approximate number of intervals between ticks.
        includes_zero: Whether the axis must include 0.
        upper_limit: A limit for the axis if all numbers are equal: the axis extends at most to this
            number.
    """
    finite = (min(max(number, -_LARGEST), _LARGEST) for number in numbers if isfinite(number))
    limited = [number if abs(number) > _SMALLEST else 0.0 for number in finite] or [0.0]
    if includes_zero:
        limited.append(0.0)
    low, high = min(limited), max(limited)
    if high - low <= max(_SMALLEST, 1e-9 * max(abs(low), abs(high))):
        low, high = (
            (low, max(1.0, 2 * abs(low)))
            if low == 0
            else (low - abs(low) / 2, high + abs(high) / 2)
        )
        high = min(high, upper_limit)
    # The next round step (1, 2 or 5 times a power of ten) gives about the wanted number of ticks.
    # The tolerances keep rounding errors from adding a step or a tick.
    rough_step = (high - low) / max(1, intervals)
    power = float(10.0 ** floor(log10(rough_step)))
    step = power * next(step for step in _STEPS if step * power >= rough_step * (1 - 1e-9))
    first_tick, last_tick = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = tuple(round(place * step, 12) for place in range(first_tick, last_tick + 1))
    return Axis(
        first_tick * step,
        last_tick * step,
        start_position,
        end_position,
        ticks,
        max(0, -floor(log10(step) + 1e-9)),
    )


def rank_systems(comparison: Comparison) -> list[SystemScore]:
    """Return all systems, highest nDCG@10 first. Equal systems keep their order."""
    return sorted(comparison.systems, key=lambda score: -score.means[PRIMARY])


def classify_system(comparison: Comparison, score: SystemScore) -> str:
    """Return a system's class, ``better``, ``worse`` or ``same``, compared with the baseline.

    Without a significant difference, the class is ``same``. The baseline's own class is ``base``.
    """
    if score.name == comparison.baseline:
        return "base"
    if not score.difference.is_significant or not score.difference.gain:
        return "same"
    return "better" if score.difference.gain > 0 else "worse"


def make_quality_axis(comparison: Comparison) -> Axis:
    """Return the axis for the bars of all systems' nDCG@10, with positions in percent.

    The axis starts at 0 and covers each system's nDCG@10 and the upper end of its interval.
    """
    base = comparison[comparison.baseline].means[PRIMARY]
    reached = [base + score.difference.high for score in comparison.systems]
    reached += [score.means[PRIMARY] for score in comparison.systems]
    return make_axis((min(1.0, number) for number in reached), 0.0, 100.0)


def count_better_same_worse(score: SystemScore) -> tuple[int, int, int]:
    """Return the numbers of questions that got better, stayed the same, and got worse.

    A question got better if the system's nDCG@10 is higher than the baseline's.
    """
    helped = sum(gain > TOLERANCE for gain in score.gains.values())
    hurt = sum(gain < -TOLERANCE for gain in score.gains.values())
    return helped, len(score.gains) - helped - hurt, hurt


def make_gains_axis(comparison: Comparison) -> Axis:
    """Return the vertical axis for all systems' gains per question, in points (hundredths)."""
    return make_axis(
        (100 * gain for score in comparison.challengers for gain in score.gains.values()),
        GAINS_HEIGHT - 8.0,
        8.0,
        intervals=4,
    )


def draw_gains_and_losses(score: SystemScore, gains_axis: Axis) -> tuple[str, str]:
    """Return two SVG paths, one for the gains and one for the losses, with a step per question.

    The questions are sorted, largest gain first. Each step is 1 wide, so the width of the chart is
    the number of questions.
    """
    heights = sorted(gains_axis.compute_position(100 * gain) for gain in score.gains.values())
    zero = gains_axis.compute_position(0.0)
    # In SVG, y grows downwards, so a gain has a smaller y than 0.
    helped, hurt = [y for y in heights if y < zero], [y for y in heights if y > zero]
    return _draw_steps(helped, 0, zero), _draw_steps(hurt, len(heights) - len(hurt), zero)


def _draw_steps(heights: Sequence[float], start_x: int, zero_y: float) -> str:
    """Return an SVG path with one step for each of *heights*, or ``""`` if there are none.

    Args:
        heights: The vertical position of each step.
        start_x: The horizontal position of the first step.
        zero_y: The vertical position of the number 0.
    """
    steps, end = "", start_x
    # Equal neighbours share one segment, which keeps the page small.
    for height, questions in groupby(heights):
        end += len(list(questions))
        steps += f"V{height:g}H{end}"
    return f"M{start_x} {zero_y:g}{steps}V{zero_y:g}Z" if steps else ""


@dataclass(frozen=True, slots=True)
class Point:
    """The position of one system in a scatter chart.

    Attributes:
        number: The system's rank by quality, from 1.
        name: The system's name.
        kind: The system's class, such as ``better`` (see `classify_system`).
        title: The text of the tooltip.
        x: The horizontal position.
        y: The vertical position.
    """

    number: int
    name: str
    kind: str
    title: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Label:
    """A label in a scatter chart: the names of the systems at one point.

    Attributes:
        text: The names.
        anchor: The value of SVG's ``text-anchor``: ``start``, ``middle`` or ``end``.
        x: The horizontal position.
        y: The vertical position of the text's baseline.
        box: The area that the text covers.
    """

    text: str
    anchor: str
    x: float
    y: float
    box: Box


@dataclass(frozen=True, slots=True)
class Mark:
    """A rounded rectangle in a scatter chart that shows one or more systems.

    Attributes:
        points: The systems.
        kind: The class of the systems, such as ``better``; ``mixed`` if their classes differ.
        title: The text of the tooltip.
        text: The numbers of the systems, if there is no room for their names; otherwise empty.
        x: The horizontal position of the centre.
        y: The vertical position of the centre.
        width: The width of the rectangle.
        height: The height of the rectangle.
        label: The names of the systems; ``None`` if there is no room.
    """

    points: tuple[Point, ...]
    kind: str
    title: str
    text: str
    x: float
    y: float
    width: float
    height: float
    label: Label | None = None

    @property
    def box(self) -> Box:
        """The area that other marks must not overlap: the mark without a pixel on each side.

        Because the mark's corners are round, marks that overlap by a pixel look separate.
        """
        across, down = self.width / 2 - 1.0, self.height / 2 - 1.0
        return Box(self.x - across, self.y - down, self.x + across, self.y + down)


@dataclass(frozen=True, slots=True)
class Scatter:
    """A scatter chart of quality against a cost. Positions are in pixels.

    Attributes:
        name: The cost's name.
        unit: The cost's unit.
        across: The horizontal axis, for the cost.
        up: The vertical axis, for the quality.
        points: One point per system whose cost is known.
        marks: The shapes that show the points. Points that are close together share a mark.
        frontier: The SVG path through the best systems at each cost.
        unknown: The names of the systems whose cost is not known.
    """

    name: str
    unit: str
    across: Axis
    up: Axis
    points: tuple[Point, ...]
    marks: tuple[Mark, ...]
    frontier: str
    unknown: tuple[str, ...]

    @property
    def numbered(self) -> tuple[Point, ...]:
        """The systems whose marks show a number. The list below the chart names them."""
        points = (point for mark in self.marks if mark.label is None for point in mark.points)
        return tuple(sorted(points, key=lambda point: point.number))


def draw_cost_charts(comparison: Comparison) -> tuple[Scatter, ...]:
    """Return up to three charts: nDCG@10 against price, against time, and against searches.

    If no price is known, the first chart shows model calls instead, or is left out if no system
    calls a model. If all systems make the same number of searches, the third chart is left out.
    """
    charts = []
    if any(figures.is_known(score.cost_usd) and score.cost_usd for score in comparison.systems):
        money = "US dollars per 1,000 questions"
        charts.append(
            draw_scatter(
                comparison,
                "price",
                money,
                lambda score: score.usd_per_thousand,
                figures.format_dollars,
            )
        )
    elif any(score.llm_calls for score in comparison.systems):
        calls = "model calls per question"
        charts.append(
            draw_scatter(
                comparison,
                "calls",
                calls,
                lambda score: score.llm_calls / len(score.runs),
                figures.format_rate,
            )
        )
    missing = figures.describe_missing_time(comparison)
    time = f"ms added (median){missing}" if missing else "milliseconds added (median)"
    charts.append(
        draw_scatter(
            comparison, "time", time, lambda score: score.added_ms.p50, figures.format_duration
        )
    )
    if len({score.searches_per_question for score in comparison.systems} - {None}) > 1:
        searches = "searches per question"
        charts.append(
            draw_scatter(
                comparison,
                "searches",
                searches,
                lambda score: score.searches_per_question,
                figures.format_rate,
            )
        )
    return tuple(charts)


def draw_scatter(
    comparison: Comparison,
    cost_name: str,
    cost_unit: str,
    get_cost: Callable[[SystemScore], float | None],
    format_cost: Callable[[float | None], str],
) -> Scatter:
    """Return a scatter chart of each system's nDCG@10 against one of its costs.

    Args:
        comparison: The comparison of the systems.
        cost_name: The cost's name, such as ``time``.
        cost_unit: The cost's unit, such as ``searches per question``.
        get_cost: Returns a system's cost, or ``None`` if the cost is not known.
        format_cost: Formats a cost as text.
    """
    ranked = [
        (number, score, get_cost(score)) for number, score in enumerate(rank_systems(comparison), 1)
    ]
    priced = [(number, score, price) for number, score, price in ranked if figures.is_known(price)]
    # The margins keep the points away from the axes.
    across = make_axis([price for _, _, price in priced], AREA.left + 12.0, AREA.right - 12.0)
    qualities = [score.means[PRIMARY] for _, score, _ in priced]
    up = make_axis(
        qualities, AREA.bottom - 12.0, AREA.top + 12.0, includes_zero=False, upper_limit=1.0
    )
    points = tuple(
        Point(
            number=number,
            name=score.name,
            kind=classify_system(comparison, score),
            title=f"{shorten_text(score.name, figures.NAME_LENGTH)}: {format_cost(price)}, "
            f"{PRIMARY} {figures.format_measure(score.means[PRIMARY])}",
            x=across.compute_position(price),
            y=up.compute_position(score.means[PRIMARY]),
        )
        for number, score, price in priced
    )
    best = [
        points[place]
        for place in find_frontier_indices([price for _, _, price in priced], qualities)
    ]
    # A staircase: the quality stays until you pay for the next better system.
    steps = "".join(f"H{point.x:g}V{point.y:g}" for point in best[1:])
    return Scatter(
        name=cost_name,
        unit=cost_unit,
        across=across,
        up=up,
        points=points,
        marks=draw_marks(points),
        frontier=f"M{best[0].x:g} {best[0].y:g}{steps}H{AREA.right:g}" if best else "",
        unknown=tuple(score.name for _, score, price in ranked if not figures.is_known(price)),
    )


def find_frontier_indices(costs: Sequence[float], qualities: Sequence[float]) -> list[int]:
    """Return the indices of the systems on the Pareto frontier, cheapest first.

    A system is on the frontier if every cheaper system has a lower quality, and no system with the
    same cost has a higher quality.
    """
    frontier: list[int] = []
    for place in sorted(range(len(costs)), key=lambda index: (costs[index], -qualities[index])):
        if not frontier or qualities[place] > qualities[frontier[-1]]:
            frontier.append(place)
    return frontier


def draw_marks(points: Iterable[Point]) -> tuple[Mark, ...]:
    """Return marks that show all *points*, best system first.

    Each mark has a label with the system's name or, if there is no room for the name, shows the
    system's number. Better systems get their labels first. Points whose marks would overlap share a
    mark.
    """
    # Each round turns at least one dot into a numbered mark, so the loop ends.
    dots = _merge_overlapping_marks([_make_mark([point], is_numbered=False) for point in points])
    numbered: list[Mark] = []
    while True:
        labelled = _place_labels(dots, numbered)
        if all(mark.label for mark in labelled):
            return tuple(sorted((*labelled, *numbered), key=lambda mark: mark.points[0].number))
        # A number takes more room than a dot, and may cover others, which then share the mark.
        crowded = [
            _make_mark(mark.points, is_numbered=True) for mark in labelled if mark.label is None
        ]
        marks = _merge_overlapping_marks(
            [
                *numbered,
                *crowded,
                *(dot for dot, mark in zip(dots, labelled, strict=True) if mark.label),
            ]
        )
        dots, numbered = (
            [mark for mark in marks if not mark.text],
            [mark for mark in marks if mark.text],
        )


def _merge_overlapping_marks(separate_marks: Iterable[Mark]) -> list[Mark]:
    """Return *separate_marks*, best system first. Marks that overlap are merged into one."""
    marks: list[Mark] = []
    for added in separate_marks:
        mark = added
        # A merged mark may be wider, and so overlap yet another mark.
        while covered := [other for other in marks if other.box.overlaps(mark.box)]:
            marks = [other for other in marks if other not in covered]
            points = [*mark.points, *(point for other in covered for point in other.points)]
            mark = _make_mark(points, is_numbered=any(part.text for part in (mark, *covered)))
        marks.append(mark)
    return sorted(marks, key=lambda mark: mark.points[0].number)


def _make_mark(points: Iterable[Point], *, is_numbered: bool) -> Mark:
    """Return one mark for all *points*.

    If *is_numbered* is true, the mark shows the systems' numbers.
    """
    ordered = tuple(sorted(points, key=lambda point: point.number))
    kinds = {point.kind for point in ordered}
    text = (
        shorten_text(_join_numbers([point.number for point in ordered]), _MARK_LENGTH)
        if is_numbered
        else ""
    )
    width = max(MARK, _CHARACTER * len(text) + 6.0) if is_numbered else DOT
    middle = sum(point.x for point in ordered) / len(ordered)
    return Mark(
        points=ordered,
        kind=ordered[0].kind if len(kinds) == 1 else "mixed",
        title="; ".join(point.title for point in ordered),
        text=text,
        x=round(min(max(middle, AREA.left + width / 2), AREA.right - width / 2), 1),
        y=round(sum(point.y for point in ordered) / len(ordered), 1),
        width=width,
        height=MARK if is_numbered else DOT,
    )


def _place_labels(dots: Sequence[Mark], numbered_marks: Sequence[Mark]) -> list[Mark]:
    """Return *dots*, each with a label if there is room for the label.

    A label must be inside the chart, and must not cover another label, a dot or one of
    *numbered_marks*.
    """
    marks, names = (*dots, *numbered_marks), list[Box]()
    labelled = []
    for dot in dots:
        occupied = [
            *names,
            *(mark.box.add_margins(*_CLEAR) for mark in marks if mark is not dot),
            dot.box,
        ]
        free = (
            candidate
            for candidate in _list_possible_labels(dot)
            if _LABELLED.contains(candidate.box) and not any(map(candidate.box.overlaps, occupied))
        )
        label = next(free, None)
        names += [label.box] if label is not None else []
        labelled.append(replace(dot, label=label))
    return labelled


def _list_possible_labels(dot: Mark) -> Iterator[Label]:
    """Yield a label for *dot* at each position around the dot, preferred positions first.

    The order is right, left, above, below, then the diagonals.
    """
    text = ", ".join(clean_text(point.name) for point in dot.points)
    width, aside = _estimate_text_width(text), dot.width / 2 + _GAP
    above, below = (
        dot.y - dot.height / 2 - _LABEL_HEIGHT / 2,
        dot.y + dot.height / 2 + _LABEL_HEIGHT / 2,
    )
    corner = dot.width / 2
    for anchor, x, y in (
        ("start", dot.x + aside, dot.y),
        ("end", dot.x - aside, dot.y),
        ("middle", dot.x, above),
        ("middle", dot.x, below),
        ("start", dot.x + corner, above),
        ("start", dot.x + corner, below),
        ("end", dot.x - corner, above),
        ("end", dot.x - corner, below),
        ("start", dot.x - corner, above),
        ("start", dot.x - corner, below),
        ("end", dot.x + corner, above),
        ("end", dot.x + corner, below),
    ):
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        box = Box(left, y - _LABEL_HEIGHT / 2, left + width, y + _LABEL_HEIGHT / 2)
        # SVG places a text by its baseline, which is below the middle of the line.
        yield Label(text, anchor, round(x, 1), round(y + 0.35 * LABEL_FONT, 1), box)


def _estimate_text_width(text: str) -> float:
    """Return the width of *text* in pixels. The estimate is generous, because fonts differ."""
    widths = (
        0.4
        if character in _NARROW
        else 1.0
        if character in _WIDE or east_asian_width(character) in "WF"
        else 0.74
        if character.isupper()
        else 0.62
        for character in text
    )
    return LABEL_FONT * sum(widths)


def _join_numbers(numbers: Sequence[int]) -> str:
    """Return ascending *numbers* as text, such as ``1–3, 5``.

    Three or more consecutive numbers become a range.
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )
