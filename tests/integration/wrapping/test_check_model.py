"""What a check says of a language model: asked by the real client over HTTP, once, as its breaker and budget allow."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from tests.support.model_server import ModelServer, failure
from tests.support.retrieval_world import QUERY, REPLIES, search

KEY = "sk-a-secret-key"
REPLY = REPLIES["rewrite"]


def wrap(server: ModelServer, **config: Any) -> Any:
    client = openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0)
    limits = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000, **config.pop("limits", {})}
    settings = {"transformationType": "rewrite", "limits": limits, **config}
    return qtm.QueryMiddleware(settings, client=client).wrap(
        lambda query, top_k=4: search(query, top_k)
    )


def find(check: qtm.Check, subject: str) -> qtm.Finding:
    return next(it for it in (*check.findings, *check.verdicts) if it.subject == subject)


def test_a_model_is_asked_once_though_the_gate_might_not_and_its_time_is_said(
    model_server: ModelServer,
) -> None:
    model_server.reply = REPLY
    check = wrap(model_server, escalation="auto").check(QUERY)
    model = find(check, "model")
    assert (model.state, model.values["calls"], len(model_server.bodies)) == (
        qtm.CheckState.OK,
        1,
        1,
    )
    assert model.values["ms"] > 0
    assert "searches 1 more texts (rewrite)" in find(check, "model's variants").text


@pytest.mark.parametrize(
    ("config", "most", "said"),
    [
        ({}, 2, "at most 2 per question; at most $0.032 per 1,000 questions"),
        ({"escalation": {"mode": "auto", "targetCallRate": 0.5}}, 2, "1.5 on average"),
        ({"limits": {"maxSearches": 1}}, 1, "1 per question, as without qtmiddleware; $0.016 per"),
        ({"transformationType": "decompose", "maxSubQueries": 3}, 4, "at most 4 per question"),
        (
            {"transformationType": "combined", "limits": {"maxSearches": 50}},
            8,
            "at most 8 per question",
        ),
        ({"escalation": "never"}, 1, "1 per question"),
    ],
)
def test_how_many_searches_a_question_makes_is_said_with_what_they_cost(
    config: dict[str, Any], most: int, said: str, model_server: ModelServer
) -> None:
    model_server.reply = REPLY
    check = wrap(model_server, store={"readPrice": 16}, **config).check(QUERY)
    assert find(check, "searches").values["most"] == most
    assert said in find(check, "searches").text


def test_variants_that_are_weighed_and_not_searched_help_too(model_server: ModelServer) -> None:
    model_server.reply = REPLY
    verdict = find(wrap(model_server, limits={"maxSearches": 1}).check(QUERY), "model's variants")
    assert (verdict.state, verdict.values["kinds"]) == (qtm.CheckState.OK, [])
    assert "reranks by the words of 1 texts (rewrite)" in verdict.text


def test_a_reply_that_would_be_late_is_measured_rather_than_given_up(
    model_server: ModelServer,
) -> None:
    def reply(_: Any) -> Any:
        time.sleep(0.3)
        return REPLY

    model_server.reply = reply
    check = wrap(model_server, limits={"llmTimeoutMs": 100}).check(QUERY)
    assert find(check, "model").values["ms"] >= 300
    assert "the limit is 100 ms" in find(check, "model").text
    assert "limits.llmTimeoutMs" in find(check, "model's variants").mend
    assert check.helps  # the words do


def test_a_refused_key_is_said_and_never_shown(model_server: ModelServer) -> None:
    model_server.reply = failure(401, f"Incorrect API key provided: {KEY}")
    check = wrap(model_server).check(QUERY)
    assert find(check, "model").values["reason"] == "unauthorized"
    assert "OPENAI_API_KEY" in find(check, "model's variants").mend
    assert KEY not in f"{check}{check!r}{check.to_dict()}"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"budget": {"maxLlmCallsPerMinute": 0}}, "over_budget"),
        ({"breaker": {"failures": 1}}, "circuit_open"),
    ],
)
def test_a_check_asks_no_more_than_breaker_and_budget_allow(
    config: dict[str, Any], reason: str, model_server: ModelServer
) -> None:
    model_server.reply = failure(503)
    wrapped = wrap(model_server, **config)
    wrapped.retrieve(QUERY)
    asked = len(model_server.bodies)
    assert find(wrapped.check(QUERY), "model").values["reason"] == reason
    assert len(model_server.bodies) == asked


def test_without_a_key_or_address_the_model_is_not_configured(bare_environment: None) -> None:
    wrapped = qtm.QueryMiddleware({"transformationType": "rewrite"}).wrap(
        lambda query, top_k=4: search(query, top_k)
    )
    check = wrapped.check(QUERY)
    assert find(check, "model").text == "not configured"
    assert "client=" in find(check, "model's variants").mend
