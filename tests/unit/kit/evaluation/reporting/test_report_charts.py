from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.evaluation import PRIMARY
from qtmiddleware.kit.evaluation.reporting.charts import (
    AREA,
    COSTS,
    DOT,
    Point,
    classify_system,
    draw_cost_charts,
    draw_gains_and_losses,
    draw_marks,
    find_frontier_indices,
    make_axis,
    make_gains_axis,
    make_quality_axis,
    rank_systems,
)
from tests.support.report_world import comparison, run, score, several

NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8)
SHARES = st.floats(-0.5, 0.5)


def numbered(number: int, x: float, y: float, name: str = "") -> Point:
    return Point(number, name or f"system {number}", "same", "", x, y)


@settings(deadline=None, max_examples=50)
@given(NUMBERS, st.booleans(), st.integers(2, 10))
def test_an_axis_holds_its_numbers_between_round_ones(
    numbers: list[float], zero: bool, count: int
) -> None:
    found = make_axis(numbers, 10.0, 500.0, intervals=count, includes_zero=zero)
    assert 2 <= len(found.ticks) <= count + 3
    assert all(one < other for one, other in pairwise(found.ticks))
    assert len({found.format_tick(tick) for tick in found.ticks}) == len(found.ticks)
    places = [
        found.compute_position(number) for number in (*found.ticks, *filter(math.isfinite, numbers))
    ]
    assert all(10.0 <= place <= 500.0 for place in places)


def test_an_axis_is_marked_where_a_reader_would() -> None:
    assert make_axis([0.61, 0.84], 0.0, 100.0, includes_zero=False).ticks == (
        0.6,
        0.65,
        0.7,
        0.75,
        0.8,
        0.85,
    )
    assert make_axis([1987.0], 0.0, 100.0).ticks == (0.0, 500.0, 1000.0, 1500.0, 2000.0)
    assert make_axis([0.07], 0.0, 100.0).format_tick(0.02) == "0.02"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(60, 354), st.floats(32, 324), st.text(min_size=1, max_size=30)),
        max_size=25,
    )
)
def test_every_point_has_its_name_or_number_where_nothing_else_is(
    places: list[tuple[float, float, str]],
) -> None:
    points = [numbered(number, x, y, name) for number, (x, y, name) in enumerate(places, 1)]
    marks = draw_marks(points)
    assert sorted(point.number for mark in marks for point in mark.points) == list(
        range(1, len(places) + 1)
    )
    for mark in marks:
        assert (mark.label is None) is bool(mark.text)
        assert AREA.left <= mark.x - mark.width / 2 + 0.1
        assert mark.x + mark.width / 2 <= AREA.right + 0.1
    boxes = [mark.box for mark in marks] + [mark.label.box for mark in marks if mark.label]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for label in filter(None, (mark.label for mark in marks)):
        assert AREA.left < label.box.left
        assert label.box.right <= COSTS.right
        assert 0 < label.box.top < label.box.bottom < AREA.bottom


def test_a_name_stands_right_of_its_dot_else_left_else_above_else_below() -> None:
    (free,) = draw_marks([numbered(1, 200.0, 150.0)])
    assert free.label
    assert (free.label.text, free.label.anchor) == ("system 1", "start")
    first, edge = draw_marks([numbered(1, 360.0, 150.0), numbered(2, 100.0, 90.0)])
    assert (first.label and first.label.anchor, edge.label and edge.label.anchor) == (
        "end",
        "start",
    )
    long = "a name that is too long for a side"
    (above,) = draw_marks([numbered(1, 210.0, 150.0, long)])
    assert above.label
    assert (above.label.anchor, above.label.y < above.y) == ("middle", True)
    (below,) = draw_marks([numbered(1, 210.0, 24.0, long)])
    assert below.label
    assert (below.label.anchor, below.label.y > below.y) == ("middle", True)


def test_a_name_that_fits_nowhere_keeps_its_number_and_the_list_holds_it_alone() -> None:
    gained = {"q1": 0.1, "q2": 0.2}
    (time,) = draw_cost_charts(
        comparison(score("n" * 80, gained), score("short", dict.fromkeys(gained, 0.05)))
    )
    assert [(point.number, point.name) for point in time.numbered] == [(1, "n" * 80)]
    assert [(mark.text, mark.label and mark.label.text) for mark in time.marks] == [
        ("1", None),
        ("", "short"),
        ("", "raw"),
    ]


def test_points_upon_each_other_share_one_mark() -> None:
    points = [
        numbered(1, 300.0, 50.0),
        numbered(2, 100.0, 90.0),
        numbered(3, 104.0, 93.0),
        numbered(5, 102.0, 93.0),
    ]
    alone, shared = draw_marks([*points[:3], replace(points[3], kind="better")])
    assert (alone.text, alone.kind, alone.width) == ("", "same", DOT)
    assert (shared.kind, shared.x, shared.y) == ("mixed", 102.0, 92.0)
    assert shared.label
    assert shared.label.text == "system 2, system 3, system 5"
    (many,) = draw_marks([numbered(number, 350.0, 90.0) for number in range(2, 30)])
    assert (many.text, many.label) == ("2–29", None)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), max_size=12))
def test_the_frontier_is_what_nothing_as_cheap_beats(points: list[tuple[float, float]]) -> None:
    found = find_frontier_indices(
        [price for price, _ in points], [quality for _, quality in points]
    )
    best = {
        (price, quality)
        for price, quality in points
        if not any(p <= price and q >= quality and (p, q) != (price, quality) for p, q in points)
    }
    assert {points[place] for place in found} == best
    assert len(found) == len(best)


def test_systems_are_ordered_and_coloured_by_what_is_more_than_chance() -> None:
    found = several()
    ranked = rank_systems(found)
    assert [score.means[PRIMARY] for score in ranked] == sorted(
        (it.means[PRIMARY] for it in ranked), reverse=True
    )
    kinds = [
        classify_system(found, found[name]) for name in ("raw", "system 0", "system 1", "system 2")
    ]
    assert kinds == ["base", "same", "worse", "better"]


def test_the_axis_of_quality_holds_every_interval() -> None:
    found = several()
    axis = make_quality_axis(found)
    base = found["raw"].means[PRIMARY]
    for it in found.challengers:
        low, value, high = base + it.difference.low, it.means[PRIMARY], base + it.difference.high
        assert (
            0.0
            < axis.compute_position(low)
            < axis.compute_position(value)
            < axis.compute_position(high)
            <= 100.0
        )


def test_systems_are_numbered_by_quality_and_those_without_a_price_are_named() -> None:
    gained = {"q1": 0.1, "q2": 0.2}
    unknown = score(
        "no price",
        gained,
        runs={question: run(question, calls=1, cost=None) for question in gained},
    )
    paid = score(
        "paid",
        {"q1": 0.3, "q2": 0.2},
        runs={question: run(question, cost=0.1) for question in gained},
    )
    price, time = draw_cost_charts(comparison(score("ours", gained), unknown, paid))
    assert [(point.number, point.name) for point in price.points] == [
        (1, "paid"),
        (2, "ours"),
        (4, "raw"),
    ]
    assert price.unknown == ("no price",)
    assert [point.number for point in time.points] == [1, 2, 3, 4]
    assert price.points[0].title == "paid: $100.00, nDCG@10 0.750"


def test_searches_are_a_cost_where_systems_differ_in_them() -> None:
    gained = {"q1": 0.1, "q2": 0.2}
    runs = {question: run(question, searches=3) for question in gained}
    found = comparison(score("ours", gained, runs=runs), score("unknown", gained))
    assert [chart.name for chart in draw_cost_charts(found)] == ["time"]
    base = replace(found["raw"], runs={question: run(question, searches=1) for question in gained})
    *_, searches = draw_cost_charts(replace(found, systems=(base, *found.challengers)))
    assert (searches.name, searches.unknown) == ("searches", ("unknown",))
    assert {point.title for point in searches.points} == {
        "ours: 3.00, nDCG@10 0.650",
        "raw: 1.00, nDCG@10 0.500",
    }


@settings(deadline=None, max_examples=50)
@given(st.lists(SHARES, min_size=1, max_size=400))
def test_every_question_is_a_step_as_high_as_what_it_gained_or_lost(gained: list[float]) -> None:
    system = score("ours", {str(place): gain for place, gain in enumerate(gained)})
    up = make_gains_axis(comparison(system))
    helped, hurt = draw_gains_and_losses(system, up)
    drawn = [list(map(float, re.findall(r"[-\d.]+", path))) for path in (helped, hurt)]
    for path in filter(None, drawn):
        left, zero, *steps, end = path
        assert zero == end == up.compute_position(0.0)
        ends = steps[1::2]
        assert [left, *ends] == sorted({left, *ends})
        assert 0.0 <= left < ends[-1] <= len(gained)
    highest, deepest = (
        up.compute_position(100 * max(gained)),
        up.compute_position(100 * min(gained)),
    )
    if helped:
        assert drawn[0][2] == highest
    if hurt:
        assert drawn[1][-3] == deepest
        assert drawn[1][-2] == len(gained)


def test_equal_questions_share_a_step() -> None:
    system = score("ours", {"a": 0.2, "b": 0.2, "c": 0.0, "d": -0.1})
    helped, hurt = draw_gains_and_losses(system, make_gains_axis(comparison(system)))
    assert (helped, hurt) == ("M0 157.3V8H2V157.3Z", "M3 157.3V232H4V157.3Z")


@pytest.mark.parametrize("quality", [0.5, 0.9, 1.0])
def test_no_axis_of_quality_goes_beyond_what_quality_can_be(quality: float) -> None:
    found = comparison(score("ours", {"q1": quality - 0.5}, is_significant=False))
    same = replace(
        found,
        systems=tuple(replace(it, means={**it.means, PRIMARY: quality}) for it in found.systems),
    )
    for chart in draw_cost_charts(same):
        assert max(chart.up.ticks) <= 1.0
        assert chart.up.low <= quality <= chart.up.high
