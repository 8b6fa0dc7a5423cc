"""The clock that a middleware is given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import qtmiddleware as qtm

PASSAGES = [
    {"id": "old", "score": 0.9, "text": "The limit is 40 euros.", "metadata": {"year": 2024}},
    {"id": "new", "score": 0.89, "text": "The limit is 50 euros.", "metadata": {"year": 2025}},
    {"id": "other", "score": 0.5, "text": "Bring a bag.", "metadata": {"year": 2024}},
]


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return PASSAGES[:top_k]


def test_the_clock_decides_what_last_year_is_in_its_own_time_zone() -> None:
    midnight = datetime(2025, 12, 31, 23, tzinfo=UTC)
    ahead = midnight.astimezone(timezone(timedelta(hours=2)))
    for now, first in ((midnight, "old"), (ahead, "new")):
        wrapped = qtm.middleware(clock=lambda now=now: now)(search)
        assert wrapped("the limit last year")[0]["id"] == first


def _raise() -> datetime:
    raise OSError("no time")


@pytest.mark.parametrize("clock", [_raise, lambda: None, lambda: "2025-01-01"])
def test_a_clock_that_fails_is_said_and_the_call_goes_on(clock: Callable[[], Any]) -> None:
    found = qtm.QueryMiddleware(clock=clock).wrap(search).retrieve("the current limit last year")
    assert found.matches[0].id == "old"
    assert [(it.stage, it.reason) for it in found.degradations] == [("clock", "failed")]
