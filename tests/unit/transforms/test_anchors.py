"""The dates that a model is told, and only with the questions that lean on them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

from qtmiddleware.preprocessing import find_protected_spans
from qtmiddleware.preprocessing.dates import read_times
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.transforms.anchors import Anchors
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

TODAY = date(2026, 11, 23)


class Clock:
    """A clock that is set by hand, and counts how often it is asked."""

    def __init__(self, day: date) -> None:
        self.day, self.asked = day, 0

    def __call__(self) -> datetime:
        self.asked += 1
        return datetime(self.day.year, self.day.month, self.day.day, 12, tzinfo=UTC)


def build(clock: Clock, model: ScriptedModel) -> QueryMiddleware:
    return QueryMiddleware({"transformationType": "rewrite"}, client=model, clock=clock)


def test_the_model_is_told_today_only_for_questions_that_lean_on_it() -> None:
    clock, model = Clock(TODAY), ScriptedModel({"rewrite": "limit for hotels in 2025"})
    qm = build(clock, model)
    qm.transform("hotel limit in 2025")
    assert clock.asked == 0
    qm.transform("hotel limit last year")
    plain, leaning = model.prompts
    assert "dates" not in json.loads(plain.user)
    assert json.loads(leaning.user)["dates"] == {
        "today": "Monday, 2026-11-23",
        "last week": "2026-11-16 to 2026-11-22",
        "last month": "October 2026",
        "last year": "2025",
    }
    assert '"dates" in the user message' in leaning.system
    assert '"dates" in the user message' not in plain.system


def test_a_new_day_asks_anew_only_where_the_day_counts() -> None:
    clock, model = Clock(TODAY), ScriptedModel({"rewrite": "limit for hotels"})
    qm = build(clock, model)
    for day in (TODAY, TODAY, date(2026, 11, 24)):
        clock.day = day
        qm.transform("hotel limit in 2025")
        qm.transform("hotel limit last year")
    assert [prompt.query for prompt in model.prompts].count("hotel limit in 2025") == 1
    assert [prompt.query for prompt in model.prompts].count("hotel limit last year") == 2


def test_what_does_not_lean_on_today_must_still_be_kept() -> None:
    def keep(text: str) -> list[Any]:
        times = read_times(text, "en", lambda: TODAY)
        return [
            span.text
            for span in Anchors(TODAY, times).drop_relative_spans(find_protected_spans(text))
        ]

    assert keep("limit for 2 rooms 3 years ago") == ["2"]
    assert keep("limit for 3 rooms 3 years ago") == ["3", "3"]
