"""What an operator asks a middleware about itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.fault_world import GOOD, QUERY, SECRET, search, transforming


def middleware(script: Any = GOOD, **more: Any) -> qtm.QueryMiddleware:
    return qtm.QueryMiddleware(transforming("rewrite", **more), client=ScriptedModel(script))


@pytest.mark.parametrize("how", ["client", "key", "address", "config"])
def test_a_model_is_configured_where_there_is_a_client_a_key_or_an_address(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how in ("key", "address"):
        monkeypatch.setenv("OPENAI_API_KEY" if how == "key" else "OPENAI_BASE_URL", SECRET)
    config = {"llm": {"baseUrl": "http://127.0.0.1:9/v1"}} if how == "config" else None
    qm = qtm.QueryMiddleware(config, client=ScriptedModel("x") if how == "client" else None)
    assert qm.health()["model"]["is_configured"]
    assert SECRET not in repr(qm.health())


def test_hits_and_misses_are_those_of_questions() -> None:
    qm = middleware()
    wrapped = qm.wrap(search)
    for _ in range(4):
        wrapped.retrieve(QUERY)
    cache = {"is_enabled": True, "entries": 1, "limit": 1024, "hits": 3, "misses": 1}
    assert qm.health()["cache"] == cache


def test_it_can_be_answered_as_json() -> None:
    told = json.loads(json.dumps(middleware().health()))
    assert list(told) == ["model", "chat_model", "threads", "shadow", "cache", "budget"]
    assert told["model"]["breaker"] == "closed"
