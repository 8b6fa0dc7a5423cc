"""Calls, tokens and money have a limit; beyond it the rules go on alone, and say so."""

from __future__ import annotations

import pytest

from tests.support.fault_world import GOOD, QUERY, middleware, reasons, search
from tests.support.model_server import ModelServer


def test_of_several_prompts_as_many_are_asked_as_there_is_room_for(service: ModelServer) -> None:
    service.reply = GOOD
    retrieval = (
        middleware(service, "all", budget={"maxLlmCallsPerMinute": 1}).wrap(search).retrieve(QUERY)
    )
    assert [reason for _, reason in reasons(retrieval)] == ["over_budget", "over_budget"]
    assert (retrieval.trace.llm_calls, len(service.bodies)) == (1, 1)


def test_money_is_counted_by_the_prices_that_were_given(service: ModelServer) -> None:
    service.reply = GOOD
    llm = {"inputPrice": 10.0, "outputPrice": 20.0, "maxTokens": 50}  # 0.0014 dollars a reply
    qm = middleware(service, budget={"maxUsd": 0.02, "maxTokens": 5_000}, llm=llm)
    seen = [qm.wrap(search).retrieve(f"{QUERY} ({place})") for place in range(15)]
    paid = sum(it.trace.cost_usd or 0.0 for it in seen)
    assert 0.01 < paid <= 0.02
    told = qm.health()["budget"]
    assert (told["usd"]["limit"], told["usd"]["spent"]) == (0.02, pytest.approx(paid))
    assert (told["tokens"]["limit"], told["tokens"]["spent"]) == (5_000, 120 * paid / 0.0014)
    assert [reason for _, reason in reasons(seen[-1])] == ["over_budget"]


def test_what_a_model_may_spend_on_reasoning_is_reserved_too(service: ModelServer) -> None:
    service.reply = GOOD
    budget = {"maxTokens": 5_000}
    qm = middleware(service, budget=budget, transformationModel="o4-mini")
    retrieval = qm.wrap(search).retrieve(QUERY)
    # The request allows 10,000 tokens beside the reply's own.
    assert [reason for _, reason in reasons(retrieval)] == ["over_budget"]
    assert (service.bodies, qm.health()["budget"]["tokens"]["spent"]) == ([], 0)
