"""What is built for overridden settings is kept while it is used, and freed when it is dropped."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.engine import MOST_KEPT, Engine


def client_of(engine: Engine) -> Any:
    inner: Any = engine.model.inner
    return inner._clients.get_sync_client()[0]


def test_the_clients_used_least_recently_are_dropped_and_the_own_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"})
    own = client_of(qm.engine)
    layers = [
        {"llm": {"baseUrl": f"http://127.0.0.1:{n + 1}/v1"}, "topK": n + 1}
        for n in range(MOST_KEPT + 2)
    ]
    clients = []
    for layer in layers:
        clients.append(ref(client_of(qm.engine.override((layer,)))))
        assert client_of(qm.engine.override((layers[0],))) is clients[0]()
    gc.collect()
    kept = [client() is not None for client in (clients[0], clients[1], clients[-1])]
    assert kept == [True, False, True]
    assert client_of(qm.engine) is own
    # One that was dropped is made again.
    again = client_of(qm.engine.override((layers[1],)))
    assert [own.is_closed(), again.is_closed()] == [False, False]
    qm.close()
    assert own.is_closed()
    assert again.is_closed()


def test_settings_that_name_the_same_model_and_reranker_share_them() -> None:
    qm = qtm.QueryMiddleware(
        {"transformationType": "rewrite", "rerank": {"enabled": True}},
        reranker=lambda query, texts: [0.0 for _ in texts],
    )
    engine = qm.engine.override(({"topK": 9},))
    assert engine is qm.engine.override(({"top_k": 9},))
    assert (engine.settings.top_k, engine.model.inner) == (9, qm.engine.model.inner)
    assert engine.reranker is qm.engine.reranker


def test_the_breaker_of_the_own_model_stays_whatever_calls_override() -> None:
    qm = qtm.QueryMiddleware({"breaker": {"failures": 1}}, client=ScriptedModel("x", name="own"))
    engines = [
        qm.engine.override(({"llm": {"temperature": number / 100}},))
        for number in range(2 * MOST_KEPT)
    ]
    assert {id(engine.model.breaker) for engine in engines} == {id(qm.engine.model.breaker)}
