"""A configuration is changed while questions are answered, and what still fits is kept."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any, NamedTuple
from weakref import ref

import openai
import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.runtime.circuit_breaker import BreakerState
from qtmiddleware.testing import ScriptedModel
from tests.support.fault_world import PATIENT, QUERY, SECRET, failure, search, transforming
from tests.support.living import count_new, objects
from tests.support.model_server import ModelServer
from tests.support.waiting import wait_until


class TwoServices(NamedTuple):
    """Two addresses of one server; each rewrites every question so that it shows where that was asked."""

    a: ModelServer
    b: ModelServer


@pytest.fixture
def services(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoServices]:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    rewritten = {
        name: {"rewrite": f"Does Jaco have health concerns, asked at {name}?"} for name in "ab"
    }
    two = TwoServices(
        *(ModelServer(httpserver, reply, path=f"/{name}/v1") for name, reply in rewritten.items())
    )
    yield two
    two.a.released.set()


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
    return inner.inner._clients.get_sync_client()[0]


# --- what follows ---------------------------------------------------------------------------------


async def asearch(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


class Library:
    def find(self, query: str, top_k: int = 3) -> Any:
        return search(query, top_k)


def test_every_wrapped_function_follows() -> None:
    qm = qtm.QueryMiddleware(client=ScriptedModel({"rewrite": "Is Jaco ill?"}))
    plain, awaited = qm.wrap(search), qm.wrap(asearch)

    class Wrapped(Library):
        find = qm.wrap(Library.find)

    library = Wrapped()

    def kinds() -> list[list[str]]:
        found = [
            plain.retrieve(QUERY),
            asyncio.run(awaited.aretrieve(QUERY)),
            asyncio.run(plain.aretrieve(QUERY)),
        ]
        found.append(library.find.retrieve(QUERY))
        return [[variant.kind for variant in it.variants] for it in found]

    assert kinds() == [["original"]] * 4
    assert qm.transform(QUERY).rewrite is None
    qm.reload({"transformationType": "rewrite"})
    assert kinds() == [["original", "rewrite"]] * 4
    assert qm.transform(QUERY).rewrite == "Is Jaco ill?"
    assert (qm.settings.transformation_type, plain.middleware) == ("rewrite", qm)
    qm.reload({"transformationType": "none", "keywordEvidence": {"enabled": False}})
    assert plain(QUERY) == search(QUERY)


@pytest.mark.parametrize(
    "bad",
    [
        {"topK": 0},
        {"tokK": 4},
        "no-such-file.json",
        42,
        {"transformationModel": "nobody-knows", "budget": {"maxUsd": 1.0}},
    ],
    ids=str,
)
def test_a_bad_config_is_refused_and_changes_nothing(bad: Any) -> None:
    qm = qtm.QueryMiddleware(
        transforming("rewrite"), client=ScriptedModel({"rewrite": "Is Jaco ill?"}, name="unpriced")
    )
    wrapped = qm.wrap(search)
    before = qm.config, qm.engine.model, wrapped.retrieve(QUERY).response, qm.health().threads.limit
    with pytest.raises(qtm.ConfigError):
        qm.reload(bad)
    assert (qm.config, qm.engine.model) == before[:2]
    assert (wrapped.retrieve(QUERY).response, qm.health().threads.limit) == before[2:]


def test_what_changed_is_logged_by_name_alone(caplog: pytest.LogCaptureFixture) -> None:
    qm = qtm.QueryMiddleware()
    with caplog.at_level(logging.INFO, "qtmiddleware"):
        qm.reload({"topK": 7, "cache": {"tenant": "acme"}})
        qm.reload(qm.config)
    assert [it.getMessage() for it in caplog.records] == [
        "the config was reloaded; changed: topK, cache.tenant"
    ]


# --- what is kept ---------------------------------------------------------------------------------


def test_what_is_remembered_is_kept_within_the_new_limits() -> None:
    model = ScriptedModel({"rewrite": "Is Jaco ill?"})
    qm = qtm.QueryMiddleware(transforming("rewrite"), client=model)
    wrapped = qm.wrap(search)
    queries = [f"{QUERY[:-1]} in year {number}?" for number in range(5)]
    for query in queries:
        wrapped.retrieve(query)
    qm.reload(transforming("rewrite", topK=9, keywordEvidence={"candidates": 9}))
    wrapped.retrieve(queries[0])
    assert (len(model.prompts), qm.health().cache.entries) == (5, 5)
    qm.reload(transforming("rewrite", cache={"maxEntries": 2}))
    assert (qm.health().cache.entries, qm.health().cache.limit) == (2, 2)
    wrapped.retrieve(queries[0])  # the one that was used last
    assert len(model.prompts) == 5
    qm.reload(transforming("rewrite", cache={"tenant": "other"}))
    wrapped.retrieve(queries[0])
    assert len(model.prompts) == 6


def test_a_breaker_stays_open_for_the_same_service_and_not_for_another(
    services: TwoServices,
) -> None:
    good, services.a.reply = services.a.reply, failure(500)
    breaker = {"failures": 2, "seconds": 600}
    with qtm.QueryMiddleware(config(services.a, breaker=breaker)) as qm:
        wrapped = qm.wrap(search)
        for number in range(2):
            wrapped.retrieve(f"{QUERY} ({number})")
        assert qm.health().model.breaker is BreakerState.OPEN
        qm.reload(
            config(
                services.a,
                breaker={"failures": 3, "seconds": 500},
                topK=9,
                llm={"temperature": 0.5},
            )
        )
        health = qm.health().model
        assert (health.breaker, health.failures, health.allowed_failures) == (
            BreakerState.OPEN,
            2,
            3,
        )
        assert [it.reason for it in wrapped.retrieve(QUERY).degradations] == ["circuit_open"]
        qm.reload(config(services.b, breaker=breaker))
        assert qm.health().model.breaker is BreakerState.CLOSED
        services.a.reply = good
        assert rewrites(wrapped.retrieve(QUERY)) == ["b"]
        qm.reload(config(services.a, breaker={"failures": 0}))
        assert rewrites(wrapped.retrieve(f"{QUERY} (9)")) == ["a"]


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


def is_open_client(it: Any) -> bool:
    # By their real types: the vendor's module has objects that are made when they are looked at.
    return type(it) in (openai.OpenAI, openai.AsyncOpenAI) and not it.is_closed()


@pytest.mark.parametrize("kind", ["blocking", "awaiting", "streamed"])
def test_a_client_is_closed_after_the_last_call_in_it(kind: str, services: TwoServices) -> None:
    services.a.holds = True
    before = objects(is_open_client)
    qm = qtm.QueryMiddleware(config(services.a, limits=PATIENT))
    wrapped = qm.wrap(search)

    def ask() -> qtm.Retrieval:
        if kind == "blocking":
            return wrapped.retrieve(QUERY)
        if kind == "awaiting":
            return asyncio.run(wrapped.aretrieve(QUERY))
        with wrapped.stream_answer(QUERY) as stream:
            list(stream)
            return stream.retrieval

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        services.a.asked.wait(20)
        qm.reload(config(services.b, limits=PATIENT))
        services.a.released.set()
        found = asked.result()
    assert (found.status, rewrites(found)) == ("full", ["a"])
    assert rewrites(wrapped.retrieve(f"{QUERY} (2)")) == ["b"]
    del found, asked
    assert count_new(is_open_client, before) == 1
    qm.close()
    assert count_new(is_open_client, before) == 0


# --- the own store --------------------------------------------------------------------------------


def letters(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 + text.count("a"), 1.0 + text.count("e"), 1.0 + len(text)] for text in texts]


def ingested(folder: Path, text: str) -> dict[str, Any]:
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "one.txt").write_text(text)
    settings = {"indexPath": str(folder / "index.sqlite"), "store": {"kind": "sqlite"}}
    qtm.ingest(folder / "docs", config=settings, embedder=letters)
    return settings


def is_store(it: object) -> bool:
    return type(it) is SQLiteStore


def test_another_store_is_opened_by_the_next_question_and_the_one_before_freed_when_nobody_holds_it(
    tmp_path: Path,
) -> None:
    one = ingested(tmp_path / "one", "Jaco is a dog.")
    two = ingested(tmp_path / "two", "Refunds are paid within 14 days.")
    before = objects(is_store)

    def texts(search: Any) -> list[str | None]:
        return [it.text for it in search.retrieve("What is it?").matches]

    with qtm.QueryMiddleware(one, embedder=letters) as qm:
        held = qm.retriever
        assert texts(held) == ["Jaco is a dog."]
        qm.reload({**one, "topK": 9})
        assert qm.retriever is not held
        assert (texts(held), texts(qm.retriever), count_new(is_store, before)) == (
            ["Jaco is a dog."],
            ["Jaco is a dog."],
            2,
        )
        qm.reload({**two, "topK": 9})
        assert texts(qm.retriever) == ["Refunds are paid within 14 days."]
        # Who holds a search over the store before goes on with it.
        assert (texts(held), count_new(is_store, before)) == (["Jaco is a dog."], 2)
        del held
        assert count_new(is_store, before) == 1


# --- many at once ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_eight_threads_ask_while_two_configs_take_turns(services: TwoServices) -> None:
    configs = {
        name: config(
            address,
            transformationModel=f"model-{name}",
            keywordEvidence={"candidates": width},
            limits=PATIENT,
        )
        for name, address, width in (("a", services.a, 11), ("b", services.b, 22))
    }
    open_before, threads_before = objects(is_open_client), set(threading.enumerate())
    qm = qtm.QueryMiddleware(configs["a"])
    stop, wrong, seen = Event(), [], []

    def recorded(query: str, top_k: int = 3) -> Any:
        widths.setdefault(query, set()).add(top_k)
        return search(query, top_k)

    async def arecorded(query: str, top_k: int = 3) -> Any:
        return recorded(query, top_k)

    widths: dict[str, set[int]] = {}
    wrapped, awaited = qm.wrap(recorded), qm.wrap(arecorded)

    def check(query: str, retrieval: qtm.Retrieval) -> None:
        (name,) = rewrites(retrieval) or ("?",)
        seen.append(name)
        if retrieval.status != "full" or widths.pop(query) != {{"a": 11, "b": 22}.get(name)}:
            wrong.append((name, retrieval.degradations))

    def ask(place: int) -> None:
        number = 0
        while not stop.is_set():
            query = f"{QUERY[:-1]} in year {place}-{number}?"
            check(query, wrapped.retrieve(query))
            number += 1
            sleep(0.01)

    async def aask(place: int) -> None:
        number = 0
        while not stop.is_set():
            query = f"{QUERY[:-1]} in year {place}-{number}?"
            check(query, await awaited.aretrieve(query))
            number += 1
            await asyncio.sleep(0.01)

    def flip() -> None:
        number = 0
        # However busy the machine is, both configs get questions.
        while number < 200 or (len(set(seen)) < 2 and not errors):
            qm.reload(configs["ba"[number % 2]])
            number += 1

    errors: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    asking = [Thread(target=guarded, args=(lambda place=place: ask(place),)) for place in range(6)]
    asking += [
        Thread(target=guarded, args=(lambda place=place: asyncio.run(aask(place)),))
        for place in range(6, 8)
    ]
    for thread in asking:
        thread.start()
    flip()
    stop.set()
    for thread in asking:
        thread.join()
    assert (errors, wrong) == ([], [])
    assert set(seen) == {"a", "b"}
    assert services.a.bodies
    assert services.b.bodies
    # A thread is free a moment after its result is there.
    wait_until(lambda: not qm.health().threads.in_use)
    # A wrapped function leaves the former client with its next question.
    wrapped.retrieve(QUERY)
    asyncio.run(awaited.aretrieve(QUERY))
    assert count_new(is_open_client, open_before) <= 1
    qm.close()
    assert count_new(is_open_client, open_before) == 0
    assert len(set(threading.enumerate()) - threads_before) < 40
