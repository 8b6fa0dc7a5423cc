"""Calls, tokens and money have a limit; beyond it the rules go on alone, and say so."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.providers.llms import governed
from qtmiddleware.runtime.spending import Meter
from tests.support.completions import completion
from tests.support.fault_world import QUERY, SECRET, search, transforming
from tests.support.model_server import ModelServer

GOOD = {"rewrite": "Which illness does Jaco have?"}


@pytest.fixture(autouse=True)
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A process that has not spent anything yet."""
    fresh = Meter()
    monkeypatch.setitem(governed.GovernedModel.__init__.__kwdefaults__, "meter", fresh)
    return fresh


def middleware(service: ModelServer, kind: str = "rewrite", **more: Any) -> qtm.QueryMiddleware:
    client = openai.OpenAI(base_url=service.url, api_key=SECRET, max_retries=0)
    return qtm.QueryMiddleware(transforming(kind, **more), client=client)


def reasons(retrieval: qtm.Retrieval) -> list[tuple[str, str]]:
    return [(it.stage, it.reason) for it in retrieval.degradations]


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
    told = qm.health().budget
    assert (told["usd"].limit, told["usd"].spent) == (0.02, pytest.approx(paid))
    assert (told["tokens"].limit, told["tokens"].spent) == (5_000, 120 * paid / 0.0014)
    assert [reason for _, reason in reasons(seen[-1])] == ["over_budget"]


@pytest.mark.parametrize(
    "count", [10**400, -(10**6), 1e400, "many", None], ids=lambda it: str(it)[:9]
)
def test_a_count_that_no_call_can_come_to_neither_fails_a_reply_nor_opens_the_budget(
    service: ModelServer, count: Any
) -> None:
    body = completion(json.dumps(GOOD)) | {
        "usage": {"prompt_tokens": count, "completion_tokens": count}
    }
    service.reply = body
    llm = {"inputPrice": 10.0, "outputPrice": 20.0, "maxTokens": 50}
    wrapped = middleware(service, budget={"maxUsd": 0.02}, llm=llm).wrap(search)
    seen = [wrapped.retrieve(f"{QUERY} ({place})") for place in range(30)]
    assert seen[0].status == "full"
    assert reasons(seen[-1])[-1][1] == "over_budget"
