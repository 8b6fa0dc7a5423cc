"""The dates that a model is told, and only with the questions that lean on them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.query_middleware import QueryMiddleware


class Clock:
    """A clock that is set by hand, and counts how often it is asked."""

    day, asked = 23, 0

    def __call__(self) -> datetime:
        self.asked += 1
        return datetime(2026, 11, self.day, 12, tzinfo=UTC)


def build(clock: Clock, model: ScriptedModel) -> QueryMiddleware:
    return QueryMiddleware({"transformationType": "rewrite"}, client=model, clock=clock)


def test_the_model_is_told_today_only_for_questions_that_lean_on_it() -> None:
    clock, model = Clock(), ScriptedModel({"rewrite": "limit for hotels in 2025"})
    qm = build(clock, model)
    qm.transform("hotel limit in 2025")
    assert clock.asked == 0
    for day in (23, 23, 24):  # A new day asks anew.
        clock.day = day
        qm.transform("hotel limit in 2025")
        qm.transform("hotel limit last year")
    plain, leaning, later = model.prompts
    assert json.loads(leaning.user)["dates"] == {
        "today": "Monday, 2026-11-23",
        "last week": "2026-11-16 to 2026-11-22",
        "last month": "October 2026",
        "last year": "2025",
    }
    assert json.loads(later.user)["dates"]["today"] == "Tuesday, 2026-11-24"
    assert '"dates" in the user message' in leaning.system
    assert '"dates"' not in plain.system + plain.user


@pytest.mark.parametrize(
    ("query", "rewrite", "kept"),
    [
        ("limit for 2 rooms 3 years ago", "limit for 2 rooms in 2023", "limit for 2 rooms in 2023"),
        ("limit for 2 rooms 3 years ago", "room limit in 2023", "room limit in 2023 (2)"),
        ("limit for 3 rooms 3 years ago", "room limit in 2023", "room limit in 2023 (3)"),
    ],
)
def test_what_does_not_lean_on_today_must_still_be_kept(
    query: str, rewrite: str, kept: str
) -> None:
    found = build(Clock(), ScriptedModel({"rewrite": rewrite})).transform(query)
    assert found.rewrite == kept
