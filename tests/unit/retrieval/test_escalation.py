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
    transforming,
)

REWRITE = REPLIES["rewrite"]["rewrite"]


@every_way
def test_a_remembered_transformation_costs_no_second_call(way: Way) -> None:
    searched = way.wrap(config=transforming("rewrite"))
    first, second = searched.retrieve(QUERY), searched.retrieve(QUERY)
    assert len(searched.model.prompts) == 1
    assert (first.trace.llm_calls, first.trace.cache_hits) == (1, 0)
    assert (second.trace.llm_calls, second.trace.cache_hits) == (0, 1)
    assert second.trace.decision is not None
    assert (second.trace.decision.call, second.trace.decision.reason) == (False, "cached")
    assert second.matches == first.matches
    assert sorted(searched.texts) == sorted([QUERY, REWRITE] * 2)  # results are never remembered


DIFFERENT: dict[str, dict[str, Any]] = {
    "type": {"config": {"transformationType": "hyde"}},
    "tenant": {"config": {"cache": {"tenant": "other"}}},
    "prompt": {"config": {"llm": {"prompts": {"rewrite": "Write it in another way."}}}},
    "temperature": {"config": {"llm": {"temperature": 1.0}}},
    "history": {"history": HISTORY},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_asked_differently_is_asked_again(name: str) -> None:
    searched = Way("sync").wrap(config=transforming("rewrite"))
    searched.retrieve(QUERY)
    again = searched.retrieve(QUERY, **DIFFERENT[name])
    assert len(searched.model.prompts) == 2
    assert again.trace.cache_hits == 0


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


@every_way
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("Hello!", "small_talk"),
        ("muchas gracias", "small_talk"),
        ("ERR_4711", "only_identifiers"),
        ("2024-05-01", "only_identifiers"),
        ("https://example.com/a?b=1", "only_identifiers"),
    ],
)
def test_what_no_model_could_better_is_not_sent_to_one(query: str, reason: str, way: Way) -> None:
    searched = way.wrap(config=transforming("combined"))
    retrieval = searched.retrieve(query)
    assert searched.model.prompts == []
    assert retrieval.trace.decision is not None
    assert (retrieval.trace.decision.call, retrieval.trace.decision.reason) == (False, reason)
    assert searched.texts == [query]
    assert retrieval.status == "full"


def test_small_talk_in_a_conversation_may_well_be_an_answer() -> None:
    searched = Way("sync").wrap(config=transforming("rewrite"))
    retrieval = searched.retrieve(
        "Yes", history=[message("assistant", "Do you want to know what Jaco eats?")]
    )
    assert len(searched.model.prompts) == 1
    assert "standalone" in kinds(retrieval)


@every_way
@pytest.mark.parametrize(
    ("escalation", "calls", "reason"),
    [
        ({"mode": "always"}, 1, "always"),
        ({"mode": "never"}, 0, "never"),
        ({"mode": "auto", "targetCallRate": 1.0}, 1, "target_call_rate_is_one"),
        ({"mode": "auto", "targetCallRate": 0.0}, 0, "target_call_rate_is_zero"),
    ],
)
def test_whether_the_model_was_asked_is_explained(
    escalation: dict[str, Any], calls: int, reason: str, way: Way
) -> None:
    searched = way.wrap(config=transforming("rewrite", escalation=escalation))
    decision = searched.retrieve(QUERY).trace.decision
    assert decision is not None
    assert (decision.call, decision.reason) == (bool(calls), reason)
    assert len(searched.model.prompts) == calls


@pytest.mark.parametrize(("scores", "call"), [([0.9, 0.1], False), ([0.51, 0.5], True)])
def test_auto_asks_only_where_the_first_result_is_unsure(scores: list[float], call: bool) -> None:
    asked: list[str] = []

    def respond(query: str, top_k: int) -> Any:
        asked.append(query)
        first = [0.9, 0.7] if "usual" in query else scores
        return [{"id": str(i), "score": score} for i, score in enumerate(first)]

    searched = Way("sync").wrap(
        respond, config=transforming("rewrite", escalation={"mode": "auto"})
    )
    for number in range(3):
        searched.retrieve(f"What is usual here in month {number}?", top_k=2)
    asked.clear()
    decision = searched.retrieve(QUERY, top_k=2).trace.decision
    assert decision is not None
    assert (decision.call, decision.reason) == (
        call,
        "unsure_first_result" if call else "clear_first_result",
    )
    assert decision.signals["lead"] == pytest.approx(scores[0] - scores[1])
    assert (decision.signals["doubt"] > decision.signals["threshold"]) is call
    assert asked == ([QUERY, REWRITE] if call else [QUERY])


NEW_TOPIC = "What is the boiling point of liquid nitrogen at sea level?"


def test_auto_decides_by_the_first_result_where_a_question_opens_a_new_topic() -> None:
    searched = Way("sync").wrap(
        config=transforming("rewrite", escalation={"mode": "auto", "targetCallRate": 0.0})
    )
    retrieval = searched.retrieve(NEW_TOPIC, history=HISTORY)
    assert searched.model.prompts == []
    assert retrieval.trace.decision is not None
    assert retrieval.trace.decision.reason == "target_call_rate_is_zero"
    assert ("standalone", "not searched: the question starts a new topic") in retrieval.trace.notes
