"""What is made for overridden settings is kept while it is used, and freed when it is dropped."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.runtime.circuit_breaker import BreakerState
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.components import MOST_KEPT, Components


def client_of(factory: Components, settings: Settings) -> Any:
    inner: Any = factory.get_model(settings).inner
    return inner._clients.get_sync_client()[0]


def test_the_clients_used_least_recently_are_dropped_and_the_own_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    factory = Components(Config.load({"transformationType": "rewrite"}, environ={}), None)
    own = factory.config.settings
    own_model, own_chat, own_client = (
        factory.get_model(own),
        factory.get_chat_model(own),
        client_of(factory, own),
    )
    others = [
        factory.resolve_settings(({"llm": {"baseUrl": f"http://127.0.0.1:{n + 1}/v1"}},))
        for n in range(MOST_KEPT + 2)
    ]
    clients = []
    for settings in others:
        clients.append(ref(client_of(factory, settings)))
        assert client_of(factory, others[0]) is clients[0]()
    gc.collect()
    assert [client() is None for client in (clients[0], clients[1], clients[-1])] == [
        False,
        True,
        False,
    ]
    assert (factory.get_model(own), factory.get_chat_model(own), client_of(factory, own)) == (
        own_model,
        own_chat,
        own_client,
    )
    assert not own_client.is_closed()
    # One that was dropped is made again.
    assert not client_of(factory, others[1]).is_closed()
    factory.close()
    assert own_client.is_closed()


def test_the_breaker_of_the_own_model_stays_whatever_calls_override() -> None:
    factory = Components(
        Config.load({"breaker": {"failures": 1}}, environ={}), ScriptedModel("x", name="own")
    )
    breaker = factory.get_model(factory.config.settings).breaker
    for number in range(2 * MOST_KEPT):
        factory.get_model(factory.resolve_settings(({"llm": {"temperature": number / 100}},)))
    assert (
        factory.get_model(factory.resolve_settings(({"llm": {"temperature": 1.5}},))).breaker
        is breaker
    )
    assert breaker.report()[0] is BreakerState.CLOSED
