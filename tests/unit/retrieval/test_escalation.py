"""Whether the model is asked: what is remembered, what no model could better, and what the gate decides."""

from __future__ import annotations

from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt
from tests.support.retrieval_world import (
    FOLLOW_UP,
    HISTORY,
    QUERY,
    REPLIES,
    Way,
    every_way,
    kinds,
    message,
    reasons,
    scripted,
    search,
    transforming,
)

REWRITE = REPLIES["rewrite"]["rewrite"]


def decided(retrieval: Any) -> tuple[bool, str]:
    """Whether the gate let the model be called, and why."""
    decision = retrieval.trace.decision
    return decision.call, decision.reason


@every_way
def test_a_remembered_transformation_costs_no_second_call(way: Way) -> None:
    searched = way.wrap(config=transforming("rewrite"))
    first, second = searched.retrieve(QUERY), searched.retrieve(QUERY)
    assert len(searched.model.prompts) == 1
    assert (first.trace.llm_calls, first.trace.cache_hits) == (1, 0)
    assert (second.trace.llm_calls, second.trace.cache_hits) == (0, 1)
    assert decided(second) == (False, "cached")
    assert second.matches == first.matches
    assert sorted(searched.texts) == sorted([QUERY, REWRITE] * 2)  # results are never remembered


def test_what_an_equal_question_got_meanwhile_costs_no_second_call() -> None:
    def respond(query: str, top_k: int) -> Any:
        if len(searched.calls) == 1:
            other.retrieve(QUERY, top_k)
        return search(query, top_k)

    gate = {"mode": "auto", "targetCallRate": 1.0}
    searched = Way("sync").wrap(respond, config=transforming("rewrite", escalation=gate))
    other = searched.wrapped.middleware.wrap(search)
    found = searched.retrieve(QUERY)
    assert len(searched.model.prompts) == 1
    assert decided(found) == (False, "cached")


def test_a_failure_is_not_remembered() -> None:
    replies = iter([ModelError("rate_limited"), {"rewrite": REWRITE}])
    searched = Way("sync").wrap(config=transforming("rewrite"), script=lambda _: next(replies))
    assert searched.retrieve(QUERY).status == "degraded"
    assert kinds(searched.retrieve(QUERY)) == ["original", "rewrite"]


def test_half_an_answer_is_used_and_not_remembered() -> None:
    def script(prompt: Prompt) -> Any:
        return ModelError("unavailable") if prompt.mode == "stepback" else scripted(prompt)

    searched = Way("sync").wrap(config=transforming("all"), script=script)
    first = searched.retrieve(QUERY)
    assert kinds(first) == ["original", "rewrite", "sub_query", "sub_query"]
    assert reasons(first) == [("transform.stepback", "unavailable")]
    searched.retrieve(QUERY)
    assert len(searched.model.prompts) == 6


@every_way
@pytest.mark.parametrize(
    ("config", "reason"),
    [({}, "no_transformation"), (transforming("rewrite", escalation="never"), "never")],
)
def test_a_history_that_no_model_reads_is_told(
    config: dict[str, Any], reason: str, way: Way
) -> None:
    retrieval = way.wrap(config=config).retrieve(FOLLOW_UP, history=HISTORY)
    assert ("history", f"not used for the search: {reason}") in retrieval.trace.notes
    assert retrieval.status == "full"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("Hello!", "small_talk"),
        ("muchas gracias", "small_talk"),
        ("ERR_4711", "only_identifiers"),
        ("2024-05-01", "only_identifiers"),
    ],
)
def test_what_no_model_could_better_is_not_sent_to_one(query: str, reason: str) -> None:
    searched = Way("sync").wrap(config=transforming("combined"))
    retrieval = searched.retrieve(query)
    assert (searched.model.prompts, searched.texts) == ([], [query])
    assert decided(retrieval) == (False, reason)
    assert retrieval.status == "full"


def test_small_talk_in_a_conversation_may_well_be_an_answer() -> None:
    searched = Way("sync").wrap(config=transforming("rewrite"))
    retrieval = searched.retrieve(
        "Yes", history=[message("assistant", "Do you want to know what Jaco eats?")]
    )
    assert len(searched.model.prompts) == 1
    assert "standalone" in kinds(retrieval)


NEW_TOPIC = "What is the boiling point of liquid nitrogen at sea level?"
NEVER = {"mode": "auto", "targetCallRate": 0.0}


@pytest.mark.parametrize(
    ("escalation", "query", "history", "decision"),
    [
        ("always", QUERY, (), (True, "always")),
        ("never", QUERY, (), (False, "never")),
        ({"mode": "auto", "targetCallRate": 1.0}, QUERY, (), (True, "target_call_rate_is_one")),
        (NEVER, QUERY, (), (False, "target_call_rate_is_zero")),
        # A follow-up always needs the model, unless it opens a new topic.
        (NEVER, FOLLOW_UP, HISTORY, (True, "conversation")),
        (NEVER, NEW_TOPIC, HISTORY, (False, "target_call_rate_is_zero")),
    ],
)
def test_whether_the_model_was_asked_is_explained(
    escalation: Any, query: str, history: Any, decision: tuple[bool, str]
) -> None:
    searched = Way("sync").wrap(config=transforming("rewrite", escalation=escalation))
    assert decided(searched.retrieve(query, history=history)) == decision
    assert len(searched.model.prompts) == decision[0]


@pytest.mark.parametrize(
    ("scores", "decision"),
    [([0.9, 0.1], (False, "clear_first_result")), ([0.51, 0.5], (True, "unsure_first_result"))],
)
def test_auto_asks_only_where_the_first_result_is_unsure(
    scores: list[float], decision: tuple[bool, str]
) -> None:
    def respond(query: str, top_k: int) -> Any:
        first = [0.9, 0.7] if "usual" in query else scores
        return [{"id": str(place), "score": score} for place, score in enumerate(first)]

    config = transforming("rewrite", escalation={"mode": "auto"})
    searched = Way("sync").wrap(respond, config=config)
    for number in range(3):
        searched.retrieve(f"What is usual here in month {number}?", top_k=2)
    searched.calls.clear()
    found = searched.retrieve(QUERY, top_k=2)
    assert decided(found) == decision
    assert found.trace.decision is not None
    signals = found.trace.decision.signals
    assert signals["lead"] == pytest.approx(scores[0] - scores[1])
    assert (signals["doubt"] > signals["threshold"]) is decision[0]
    assert searched.texts == ([QUERY, REWRITE] if decision[0] else [QUERY])
