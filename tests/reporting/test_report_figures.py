from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.evaluation import Difference
from qtmiddleware.reporting import figures, wording

ANY = st.none() | st.floats()


@pytest.mark.parametrize(
    ("told", "number", "text"),
    [
        (figures.value, 0.7119, "0.712"),
        (figures.value, -1e-17, "0.000"),
        (figures.points, 0.1234, "+12.3"),
        (figures.points, -0.0004, "0.0"),
        (figures.points, -0.05, "-5.0"),
        (figures.share, 0.05, "5 %"),
        (figures.share, 0.001, "<1 %"),
        (figures.share, 0.999, ">99 %"),
        (figures.share, 0.0, "0 %"),
        (figures.share, 1.0, "100 %"),
        (figures.milliseconds, 0.44, "0.4"),
        (figures.milliseconds, 9.96, "10"),
        (figures.milliseconds, 1240.4, "1,240"),
        (figures.milliseconds, -0.04, "0.0"),
        (figures.duration, 310.2, "310 ms"),
        (figures.duration, 999.6, "1.0 s"),
        (figures.rate, 0.984, "0.98"),
        (figures.dollars, 0.0, "$0.00"),
        (figures.dollars, 0.00414, "$0.0041"),
        (figures.dollars, 0.099, "$0.099"),
        (figures.dollars, 0.32, "$0.32"),
        (figures.dollars, 1204.0, "$1,204.00"),
        (figures.dollars, 1e-9, "<$0.00001"),
    ],
)
def test_numbers_are_told_as_readers_expect_them(told: object, number: float, text: str) -> None:
    assert callable(told)
    assert told(number) == text


def test_a_gain_is_told_with_its_interval_in_points() -> None:
    assert figures.gain(Difference(0.1234, -0.081, 0.1642)) == "+12.3 [-8.1, +16.4]"


@settings(deadline=None)
@given(ANY)
def test_what_is_not_known_is_a_dash_and_nothing_else_is(number: float | None) -> None:
    known = number is not None and math.isfinite(100 * number)
    if known is not (number is not None and math.isfinite(number)):
        return
    for told in (
        figures.value,
        figures.points,
        figures.share,
        figures.milliseconds,
        figures.duration,
        figures.rate,
        figures.dollars,
    ):
        text = told(number)
        assert (text == figures.UNKNOWN) is not known
        assert "nan" not in text
        assert "inf" not in text


@settings(deadline=None)
@given(st.text())
def test_a_shown_text_is_one_line_without_controls_and_can_be_written(text: str) -> None:
    shown = wording.shown(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not set(shown) & {chr(code) for code in (*range(0x20), 0x202E, 0x2066, 0x2069, 0x200F, 0x7F, 0xFEFF)}


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(2, 60))
def test_a_short_text_is_not_longer_than_asked(text: str, length: int) -> None:
    short = wording.short(text, length)
    assert len(short) <= length
    if short != wording.shown(text):
        assert short.endswith("…")


@settings(deadline=None)
@given(st.text(max_size=300), st.floats(2, 60))
def test_a_fitted_text_is_not_wider_than_asked(text: str, width: float) -> None:
    assert wording.width_of(wording.fitted(text, width)) <= width + 1e-9


def test_right_to_left_text_and_joined_pictures_stay_as_they_are() -> None:
    text = "שלום می‌خواهم 👩‍👩‍👧 combined"
    assert wording.shown(text) == text
