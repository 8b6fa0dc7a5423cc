from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.evaluation import (
    SYSTEMS,
    Comparison,
    Dataset,
    Difference,
    Question,
    measure,
)
from qtmiddleware.kit.evaluation.reporting import figures, headings, rows
from qtmiddleware.preprocessing.text import clean_text, shorten_text
from qtmiddleware.protocols import Passage
from tests.support.report_world import comparison, run, score

ANY = st.none() | st.floats()
GAINS = {"q1": 0.2, "q2": -0.1, "q3": 0.1, "q4": 0.0}


def cell(found: Comparison, name: str, heading: str) -> str:
    row = next(row for row in rows(found, wide=True) if row[0] == name)
    return row[headings(found, wide=True).index(heading)].strip()


@pytest.mark.parametrize(
    ("told", "number", "text"),
    [
        (figures.format_measure, 0.7119, "0.712"),
        (figures.format_measure, -1e-17, "0.000"),
        (figures.format_points, 0.1234, "+12.3"),
        (figures.format_points, -0.0004, "0.0"),
        (figures.format_points, -0.05, "-5.0"),
        (figures.format_share, 0.05, "5%"),
        (figures.format_share, 0.001, "<1%"),
        (figures.format_share, 0.999, ">99%"),
        (figures.format_share, 0.0, "0%"),
        (figures.format_share, 1.0, "100%"),
        (figures.format_milliseconds, 0.44, "0.4"),
        (figures.format_milliseconds, 9.96, "10"),
        (figures.format_milliseconds, 1240.4, "1,240"),
        (figures.format_milliseconds, -0.04, "0.0"),
        (figures.format_duration, 310.2, "310 ms"),
        (figures.format_duration, 999.6, "1.0 s"),
        (figures.format_rate, 0.984, "0.98"),
        (figures.format_dollars, 0.0, "$0.00"),
        (figures.format_dollars, 0.00414, "$0.0041"),
        (figures.format_dollars, 0.099, "$0.099"),
        (figures.format_dollars, 0.32, "$0.32"),
        (figures.format_dollars, 1204.0, "$1,204.00"),
        (figures.format_dollars, 1e-9, "<$0.00001"),
    ],
)
def test_numbers_are_told_as_readers_expect_them(told: object, number: float, text: str) -> None:
    assert callable(told)
    assert told(number) == text


def test_a_gain_is_told_with_its_interval_in_points() -> None:
    assert figures.format_gain(Difference(0.1234, -0.081, 0.1642)) == "+12.3 [-8.1, +16.4]"


@settings(deadline=None)
@given(ANY)
def test_what_is_not_known_is_a_dash_and_nothing_else_is(number: float | None) -> None:
    known = number is not None and math.isfinite(100 * number)
    if known is not (number is not None and math.isfinite(number)):
        return
    for told in (
        figures.format_measure,
        figures.format_points,
        figures.format_share,
        figures.format_milliseconds,
        figures.format_duration,
        figures.format_rate,
        figures.format_dollars,
    ):
        text = told(number)
        assert (text == figures.UNKNOWN) is not known
        assert "nan" not in text
        assert "inf" not in text


@settings(deadline=None)
@given(st.text(max_size=300))
def test_a_shown_text_is_one_line_without_controls_and_can_be_written(text: str) -> None:
    shown = shorten_text(text, 300)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not set(shown) & {
        chr(code) for code in (*range(0x20), 0x202E, 0x2066, 0x2069, 0x200F, 0x7F, 0xFEFF)
    }


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(2, 60))
def test_a_short_text_is_not_longer_than_asked(text: str, length: int) -> None:
    short = shorten_text(text, length)
    assert len(short) <= length
    if short != clean_text(text):
        assert short.endswith("…")


def test_right_to_left_text_stays_as_it_is() -> None:
    text = "שלום می‌خواهم combined"
    assert shorten_text(text, 60) == text


def test_a_row_holds_all_that_was_measured_of_a_system() -> None:
    runs = {
        question: run(question, calls=1, cost=0.0005, searches=3, reads=48e-6) for question in GAINS
    }
    found = comparison(score("ours", GAINS, ms=(1240.0, 2300.0), runs=runs, deep=True), deep=True)
    assert dict(zip(headings(found, wide=True), rows(found, wide=True)[1], strict=True)) == {
        "system": "ours",
        "nDCG@10": "0.550",
        "gain [95%]": "+5.0 [+3.0, +7.0]*",
        "first": "50%",
        "R@10": "0.550",
        "R@100": "0.550",
        "MRR@10": "0.550",
        "P@5": "0.550",
        "MAP": "0.550",
        "hurt": "25%",
        "helped": "50%",
        "+ms p50": "1,240",
        "p95": "2,300",
        "searches": "3.00",
        "reads $/1k": "$0.048",
        "calls": "1.00",
        "$/1k": "$0.50",
        "$/+0.01": "$0.10",
    }


def test_the_first_passage_is_right_where_the_reciprocal_rank_is_one() -> None:
    passages = tuple(Passage(id_, f"about {id_}") for id_ in "ab")
    asked = Dataset(
        "two",
        passages,
        tuple(Question(id_, f"what is {id_}?") for id_ in "ab"),
        {it: {it: 1} for it in "ab"},
    )
    systems = {"raw": lambda it: [("b", 1.0), ("a", 0.9)], "ours": lambda it: [(it.id, 1.0)]}
    found = measure(systems, asked, baseline="raw")
    assert [figures.count_relevant_first_passages(found[name]) for name in ("raw", "ours")] == [
        1,
        2,
    ]
    assert cell(found, "raw", "first") == "50%"


def test_a_gain_that_may_be_chance_has_no_mark() -> None:
    assert (
        cell(comparison(score("ours", GAINS, is_significant=False)), "ours", "gain [95%]")
        == "+5.0 [+3.0, +7.0]"
    )


def test_what_is_not_known_is_a_dash() -> None:
    runs = {question: run(question, calls=1, cost=None) for question in GAINS}
    found = comparison(score("ours", GAINS, runs=runs), score("lost", dict.fromkeys(GAINS, -0.1)))
    assert [cell(found, "ours", it) for it in ("$/1k", "$/+0.01")] == ["–", "–"]
    assert cell(found, "lost", "$/+0.01") == "–"
    assert cell(found, "raw", "gain [95%]") == "–"


def test_a_hundred_passages_are_a_column_only_where_they_were_measured() -> None:
    assert "R@100" not in headings(comparison(score("ours", GAINS)), wide=True)
    assert "R@100" in headings(comparison(score("ours", GAINS, deep=True), deep=True))


def test_what_searches_cost_is_a_column_only_where_a_price_is_known() -> None:
    runs = {question: run(question, searches=2) for question in GAINS}
    found = comparison(score("ours", GAINS, runs=runs))
    assert "reads $/1k" not in headings(found, wide=True)
    assert (cell(found, "ours", "searches"), cell(found, "raw", "searches")) == ("2.00", "–")


def test_the_usual_table_fits_a_terminal() -> None:
    runs = {question: run(question, calls=3, cost=0.000063, searches=6) for question in GAINS}
    large = dict.fromkeys(GAINS, 0.2123)
    names = [name for name in SYSTEMS if name != "raw"]
    found = comparison(
        *(score(it, large, ms=(1987.0, 12577.0), runs=runs, deep=True) for it in names), deep=True
    )
    lines = [headings(found), *rows(found)]
    assert sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2 <= 120


@settings(deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4, unique=True), st.booleans())
def test_every_row_is_as_long_as_the_headings_and_on_one_line(names: list[str], wide: bool) -> None:
    found = comparison(*(score(name, GAINS) for name in names if name != "raw"))
    for row in rows(found, wide=wide):
        assert len(row) == len(headings(found, wide=wide))
        assert all(len(text.splitlines()) <= 1 for text in row)
