"""What the gate is told of a query that is retrieved."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.retrieval_world import (
    FOLLOW_UP,
    HISTORY,
    PASSAGES,
    QUERY,
    Searched,
    Way,
    every_way,
    search,
    transforming,
)

SIGNALS = ("lead", "coverage", "agreement", "joint_lead")
AUTO = transforming("rewrite", escalation={"mode": "auto"}, cache={"enabled": False})


def signals_of(searched: Searched, query: str = QUERY) -> dict[str, float]:
    decision = searched.retrieve(query).trace.decision
    assert decision is not None
    return dict(decision.signals)


@every_way
def test_scores_and_texts_decide(way: Way) -> None:
    signals = signals_of(way.wrap(config=AUTO))
    assert list(signals) == [
        "lead",
        "coverage",
        "agreement",
        "joint_lead",
        "doubt",
        "threshold",
        "observed",
    ]
    assert signals["coverage"] == 1.0


def test_the_text_is_found_where_the_settings_say() -> None:
    def respond(_query: str, _top_k: int) -> Any:
        return [
            {"id": name, "score": 0.5, "metadata": {"words": text}}
            for name, text in PASSAGES.items()
        ]

    config: dict[str, Any] = {**AUTO, "keywordEvidence": {"fields": {"text": "words"}}}
    assert "coverage" not in signals_of(Way("sync").wrap(respond, config=AUTO))
    assert signals_of(Way("sync").wrap(respond, config=config))["coverage"] == 1.0


@pytest.mark.parametrize(
    ("kept", "signals"),
    [
        (("id", "score"), ["lead"]),
        (("id", "metadata"), ["coverage", "agreement", "joint_lead"]),
        (("id",), []),
    ],
)
def test_what_is_missing_is_left_out(kept: tuple[str, ...], signals: list[str]) -> None:
    def respond(query: str, top_k: int) -> Any:
        return [{name: row[name] for name in kept} for row in search(query, top_k)]

    found = signals_of(Way("sync").wrap(respond, config=AUTO))
    assert [name for name in found if name in SIGNALS] == signals


def test_follow_ups_leave_fewer_calls_to_the_other_questions() -> None:
    searched = Way("sync").wrap(config=AUTO)
    before = signals_of(searched)["threshold"]
    for _ in range(3):
        searched.retrieve(FOLLOW_UP, history=HISTORY)
    assert signals_of(searched)["threshold"] > before
