"""What a check says of a language model: the real client asks it over HTTP, once."""

from __future__ import annotations

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


def find_model(check: qtm.Check) -> qtm.Finding:
    return next(finding for finding in check.findings if finding.subject == "model")


@pytest.mark.parametrize(("searches", "said"), [(2, "1 more search"), (1, "0 more searches")])
def test_a_model_is_asked_once_though_the_gate_might_not(
    searches: int, said: str, model_server: ModelServer
) -> None:
    model_server.reply = REPLY
    wrapped = wrap(model_server, escalation="auto", limits={"maxSearches": searches})
    model = find_model(wrapped.check([QUERY, "Do cats sleep?", "Who walks?"]))
    assert model.state is qtm.CheckState.OK
    assert len(model_server.bodies) == 1
    assert "it wrote rewrite" in model.text.lower()
    assert said in model.text


@pytest.mark.parametrize(
    ("reply", "config", "reason", "fix"),
    [
        (failure(401, f"Incorrect API key: {KEY}"), {}, "unauthorized", "OPENAI_API_KEY"),
        (failure(503), {}, "unavailable", "llm.baseUrl"),
        (REPLY, {"budget": {"maxLlmCallsPerMinute": 0}}, "over_budget", "budget.*"),
        ("I cannot help with that.", {}, "refused", ""),
    ],
)
def test_a_model_without_a_usable_reply_is_said_with_what_to_set(
    reply: Any, config: dict[str, Any], reason: str, fix: str, model_server: ModelServer
) -> None:
    model_server.reply = reply
    wrapped = wrap(model_server, **config)
    check = wrapped.check(QUERY)
    model = find_model(check)
    assert model.state is qtm.CheckState.PROBLEM
    assert f"gave no usable reply: {reason}" in model.text
    assert fix in model.fix
    assert KEY not in f"{check}{check!r}{check.to_dict()}"
    assert "problem" not in {finding.subject for finding in check.findings}
    assert wrapped.middleware.health()["model"]["failures"] == 0
