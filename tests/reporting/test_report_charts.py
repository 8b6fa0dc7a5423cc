from __future__ import annotations

import math
import re
from itertools import combinations, pairwise

import pytest
from comparisons import comparison, run, score, several
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.reporting import figures
from qtmiddleware.reporting.bars import bars
from qtmiddleware.reporting.gains import counts, gains, order
from qtmiddleware.reporting.labels import Anchor, Box, placed
from qtmiddleware.reporting.scales import axis
from qtmiddleware.reporting.scatter import frontier, scatter

NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8)
SHARES = st.floats(-0.5, 0.5)
AREA = Box(0.0, 0.0, 450.0, 360.0)


@settings(deadline=None, max_examples=50)
@given(NUMBERS, st.booleans(), st.integers(2, 10))
def test_an_axis_holds_its_numbers_between_round_ones(numbers: list[float], zero: bool, count: int) -> None:
    found = axis(numbers, 10.0, 500.0, count=count, zero=zero)
    assert 2 <= len(found.ticks) <= count + 3
    assert all(one < other for one, other in pairwise(found.ticks))
    assert len({found.label(tick) for tick in found.ticks}) == len(found.ticks)
    places = [found.scale(number) for number in (*found.ticks, *filter(math.isfinite, numbers))]
    assert all(10.0 <= place <= 500.0 for place in places)


def test_an_axis_is_marked_where_a_reader_would() -> None:
    assert axis([0.61, 0.84], 0.0, 100.0, zero=False).ticks == (0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
    assert axis([1987.0], 0.0, 100.0).ticks == (0.0, 500.0, 1000.0, 1500.0, 2000.0)
    assert axis([0.07], 0.0, 100.0).label(0.02) == "0.02"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(20, 430), st.floats(20, 340), st.floats(5, 150)), max_size=14),
    st.lists(st.tuples(st.floats(0, 400), st.floats(0, 350)), max_size=3),
)
def test_labels_lie_on_nothing_and_within_the_chart(
    points: list[tuple[float, float, float]], corners: list[tuple[float, float]]
) -> None:
    anchors = [Anchor(x, y, 5.0, width, 15.0) for x, y, width in points]
    found = placed(anchors, AREA, [Box(x, y, x + 50.0, y + 1.0) for x, y in corners])
    boxes = [one.box for one in found if one]
    assert all(box.within(AREA) for box in boxes)
    assert not any(one.meets(other) for one, other in combinations(boxes, 2))
    assert not any(box.meets(anchor.box) for box in boxes for anchor in anchors)


def test_many_labels_find_a_place_even_at_one_point() -> None:
    found = placed([Anchor(60.0, 300.0, 5.5, 110.0, 15.0)] * 16, AREA)
    assert all(found)
    assert any(one.leader for one in found if one)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), max_size=12))
def test_the_frontier_is_what_nothing_as_cheap_beats(points: list[tuple[float, float]]) -> None:
    found = frontier([price for price, _ in points], [quality for _, quality in points])
    best = {
        (price, quality)
        for price, quality in points
        if not any(p <= price and q >= quality and (p, q) != (price, quality) for p, q in points)
    }
    assert {points[place] for place in found} == best
    assert len(found) == len(best)


def test_bars_are_ordered_and_coloured_by_what_is_more_than_chance() -> None:
    found = bars(several(), 920.0)
    assert [bar.value for bar in found.bars] == sorted((bar.value for bar in found.bars), reverse=True)
    kinds = {bar.name: bar.kind for bar in found.bars}
    assert (kinds["raw"], kinds["system 0"], kinds["system 1"], kinds["system 2"]) == (
        "base",
        "same",
        "worse",
        "better",
    )
    base = next(bar for bar in found.bars if bar.kind == "base")
    assert found.left + base.width == pytest.approx(found.base)
    for bar in found.bars:
        if bar.low is not None and bar.high is not None:
            assert bar.low <= found.left + bar.width <= bar.high


@pytest.mark.parametrize(("width", "height"), [(450.0, 360.0), (340.0, 340.0)])
def test_every_system_has_a_point_and_those_without_a_price_are_named(width: float, height: float) -> None:
    gained = {"q1": 0.1, "q2": 0.2}
    unknown = score("no price", gained, runs={question: run(question, calls=1, cost=None) for question in gained})
    found = scatter(
        comparison(score("ours", gained), unknown), lambda it: it.usd_per_thousand, figures.dollars, width, height
    )
    assert [point.text for point in found.points] == ["raw", "ours"]
    assert found.unknown == ("no price",)
    assert all(point.label for point in found.points)


@settings(deadline=None, max_examples=50)
@given(st.lists(SHARES, min_size=1, max_size=40), st.integers(50, 900))
def test_strokes_stand_for_all_questions_that_changed(gained: list[float], width: int) -> None:
    system = score("ours", {str(place): gain for place, gain in enumerate(gained)})
    found = gains(system, (min(gained), max(gained)), float(width + 48), 200.0)
    helped, same, hurt = counts(system)
    assert (helped + same + hurt, found.shared >= 1) == (len(gained), True)
    if found.shared == 1:
        assert (found.helped.count("M"), found.hurt.count("M")) == (helped, hurt)
    places = [float(place) for place in re.findall(r"[-\d.]+", found.helped + found.hurt)]
    assert all(0.0 <= place <= max(width + 48, 200) for place in places)


def test_questions_are_ordered_from_the_most_helped_to_the_most_hurt() -> None:
    assert order(score("ours", {"a": -0.1, "b": 0.3, "c": 0.0, "d": 0.3})) == ["b", "d", "c", "a"]


def test_strokes_too_thin_to_see_are_shared() -> None:
    many = score("ours", {str(place): (place - 750) / 1500 for place in range(1500)})
    found = gains(many, (-0.5, 0.5), 920.0, 260.0)
    assert found.shared == 6
    assert found.helped.count("M") + found.hurt.count("M") == pytest.approx(250, abs=1)
