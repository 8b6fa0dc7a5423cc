"""What an operator asks a middleware about itself."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.providers.llms import governed
from qtmiddleware.runtime.circuit_breaker import BreakerState
from qtmiddleware.runtime.spending import Meter
from qtmiddleware.testing import ScriptedModel
from tests.support.fault_world import QUERY, SECRET, failure, search, transforming
from tests.support.model_server import ModelServer

GOOD = {"rewrite": "Is Jaco ill?"}


@pytest.fixture(autouse=True)
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A process that has not spent anything yet."""
    fresh = Meter()
    monkeypatch.setitem(governed.GovernedModel.__init__.__kwdefaults__, "meter", fresh)
    return fresh


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
    assert qm.health().model.is_configured
    assert SECRET not in repr(qm.health())


def test_hits_and_misses_are_those_of_questions() -> None:
    qm = middleware()
    wrapped = qm.wrap(search)
    for _ in range(4):
        wrapped.retrieve(QUERY)
    health = qm.health().cache
    assert (health.entries, health.hits, health.misses, health.hit_rate) == (1, 3, 1, 0.75)
    assert "entries 1, limit 1024, hits 3, misses 1, hit_rate 0.75" in str(qm.health())
    off = middleware(cache={"enabled": False})
    off.wrap(search).retrieve(QUERY)
    assert (off.health().cache.is_enabled, off.health().cache.hit_rate) == (False, None)


def test_it_can_be_answered_as_json_and_not_be_changed() -> None:
    health: Any = middleware().health()
    told = json.loads(json.dumps(health.to_dict()))
    assert list(told) == ["model", "chat_model", "threads", "shadow", "cache", "budget"]
    assert told["model"]["breaker"] == "closed"
    assert [line.split()[0] for line in str(health).splitlines()] == list(told)
    with pytest.raises(FrozenInstanceError):
        health.threads = None


# --- ready ----------------------------------------------------------------------------------------


async def test_a_closed_middleware_is_ready_when_it_is_used_again() -> None:
    qm = middleware()
    async with qm:
        assert qm.ready()
    assert not qm.ready()
    qm.warm_up()
    assert qm.ready()


def test_a_broken_model_a_lost_cache_and_an_open_breaker_leave_it_ready(
    service: ModelServer,
) -> None:
    service.reply = failure(500)
    config = transforming(
        "rewrite",
        llm={"baseUrl": service.url},
        breaker={"failures": 1},
        rerank={"enabled": True},
    )

    def broken(question: str, texts: list[str]) -> list[float]:
        raise OSError

    class Lost:
        def get(self, key: str) -> str:
            raise OSError

        def set(self, key: str, value: str, seconds: int) -> None:
            raise OSError

    with qtm.QueryMiddleware(config, reranker=broken, cache=Lost()) as qm:
        qm.warm_up()
        assert qm.wrap(search)(QUERY)
        assert qm.health().model.breaker is BreakerState.OPEN
        assert qm.ready()
