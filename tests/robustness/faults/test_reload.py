"""A configuration is changed while questions are answered."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from weakref import ref

import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.fault_world import PATIENT, QUERY, SECRET, search, transforming
from tests.support.model_server import ModelServer
from tests.support.waiting import wait_until


class TwoServices(NamedTuple):
    """Two addresses of one server; each rewrites every question so that it shows where that was asked."""

    a: ModelServer
    b: ModelServer


@pytest.fixture
def services(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoServices]:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    two = []
    for name in "ab":
        reply = {"rewrite": f"Does Jaco have health concerns, asked at {name}?"}
        two.append(ModelServer(httpserver, reply, path=f"/{name}/v1"))
    yield TwoServices(*two)
    two[0].released.set()


def config(service: ModelServer, **more: Any) -> dict[str, Any]:
    llm = {"baseUrl": service.url, **more.pop("llm", {})}
    return transforming("rewrite", llm=llm, **more)


def rewrites(retrieval: qtm.Retrieval) -> list[str]:
    """At which service each rewrite was made."""
    return [
        it.text.partition("asked at ")[2][:1] for it in retrieval.variants if it.kind == "rewrite"
    ]


def client_of(qm: qtm.QueryMiddleware) -> Any:
    inner: Any = qm.engine.model
    return inner.inner._clients.get()


# --- what follows ---------------------------------------------------------------------------------


async def asearch(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


def test_every_wrapped_function_follows() -> None:
    qm = qtm.QueryMiddleware(client=ScriptedModel({"rewrite": "Is Jaco ill?"}))
    plain, awaited = qm.wrap(search), qm.wrap(asearch)

    def kinds() -> list[list[str]]:
        found = [plain.retrieve(QUERY), asyncio.run(awaited.aretrieve(QUERY))]
        return [[variant.kind for variant in it.variants] for it in found]

    assert kinds() == [["original"]] * 2
    assert qm.transform(QUERY).rewrite is None
    qm.reload({"transformationType": "rewrite"})
    assert kinds() == [["original", "rewrite"]] * 2
    assert qm.transform(QUERY).rewrite == "Is Jaco ill?"
    qm.reload({"transformationType": "none", "keywordEvidence": {"enabled": False}})
    assert plain(QUERY) == search(QUERY)


@pytest.mark.parametrize(
    "bad",
    [
        {"topK": 0},
        "no-such-file.json",
        {"transformationModel": "nobody-knows", "budget": {"maxUsd": 1.0}},
    ],
    ids=str,
)
def test_a_bad_config_is_refused_and_changes_nothing(bad: Any) -> None:
    qm = qtm.QueryMiddleware(
        transforming("rewrite"), client=ScriptedModel({"rewrite": "Is Jaco ill?"}, name="unpriced")
    )
    wrapped = qm.wrap(search)
    before = (
        qm.config,
        qm.engine.model,
        wrapped.retrieve(QUERY).response,
        qm.health()["threads"]["limit"],
    )
    with pytest.raises(qtm.ConfigError):
        qm.reload(bad)
    assert (qm.config, qm.engine.model) == before[:2]
    assert (wrapped.retrieve(QUERY).response, qm.health()["threads"]["limit"]) == before[2:]


def test_a_new_key_is_read_though_the_config_is_the_same(
    services: TwoServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    with qtm.QueryMiddleware(config(services.a)) as qm:
        wrapped, client = qm.wrap(search), client_of(qm)
        wrapped.retrieve(QUERY)
        monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}-new")
        qm.reload(config(services.a))
        wrapped.retrieve(f"{QUERY} (2)")
        former = ref(client)
        del client
        gc.collect()
        assert former() is None
        assert services.a.keys == [f"Bearer {SECRET}", f"Bearer {SECRET}-new"]


# --- what is closed -------------------------------------------------------------------------------


def test_a_client_is_closed_after_the_last_call_in_it(services: TwoServices) -> None:
    services.a.holds = True
    qm = qtm.QueryMiddleware(config(services.a, limits=PATIENT))
    wrapped, former = qm.wrap(search), ref(client_of(qm))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(wrapped.retrieve, QUERY)
        wait_until(services.a.asked.is_set)
        qm.reload(config(services.b, limits=PATIENT))
        assert former() is not None
        services.a.released.set()
        found = asked.result()
    assert (found.status, rewrites(found)) == ("full", ["a"])
    del found, asked
    gc.collect()
    assert former() is None
    assert rewrites(wrapped.retrieve(f"{QUERY} (2)")) == ["b"]
    latter = client_of(qm)
    assert not latter.is_closed()
    qm.close()
    assert latter.is_closed()
