"""What the caller has set is seen wherever its question is worked at, and what is set there stays there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import qtmiddleware as qtm
from tests.support.concurrency_world import QUERY, SUBS, config, found, reply

pytestmark = pytest.mark.thorough

WAYS = ("sync", "async", "threads")
every_way = pytest.mark.parametrize("way", WAYS)

request_id: ContextVar[str] = ContextVar("request_id", default="none")
set_by_search: ContextVar[str] = ContextVar("set_by_search", default="nobody")


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    exporter.tracer = provider.get_tracer("tests")  # type: ignore[attr-defined]
    yield exporter
    provider.shutdown()


class House:
    """Everything a question passes through, each part under a span of its own and with what it saw."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.seen: list[tuple[str, str, object]] = []

    def _look(self, name: str) -> Any:
        self.seen.append((name, request_id.get(), baggage.get_baggage("tenant")))
        return self.tracer.start_as_current_span(name)

    def search(self, vector: Sequence[float], top_k: int = 2) -> Any:
        with self._look("search"):
            return found(f"passage {vector[0]}", top_k)

    async def asearch(self, vector: Sequence[float], top_k: int = 2) -> Any:
        with self._look("search"):
            await asyncio.sleep(0)
            return found(f"passage {vector[0]}", top_k)

    def embed(self, texts: Sequence[str]) -> Any:
        with self._look("embed"):
            return [[float(len(text))] for text in texts]

    async def aembed(self, texts: Sequence[str]) -> Any:
        with self._look("embed"):
            await asyncio.sleep(0)
            return [[float(len(text))] for text in texts]

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        with self._look("rerank"):
            return [float(len(text)) for text in texts]

    def model(self, messages: Any) -> str:
        with self._look("model"):
            return self._said()

    async def amodel(self, messages: Any) -> str:
        with self._look("model"):
            await asyncio.sleep(0)
            return self._said()

    def _said(self) -> str:
        return json.dumps(reply({"sub_queries": "list"}))

    def ask(self, way: str) -> Any:
        settings = config(rerank={"enabled": True})
        client = self.amodel if way == "async" else self.model
        middleware = qtm.QueryMiddleware(settings, client=client, reranker=self.rerank)
        if way == "async":
            wrapped = middleware.wrap(self.asearch, query_arg="vector", embed=self.aembed)
        else:
            wrapped = middleware.wrap(self.search, query_arg="vector", embed=self.embed)
        return wrapped.retrieve(QUERY) if way == "sync" else asyncio.run(wrapped.aretrieve(QUERY))


PARTS = ["embed", "embed", "model", "rerank", *["search"] * 4]


@every_way
def test_the_callers_span_variables_and_baggage_are_seen_by_every_part_of_its_question(
    way: str, spans: InMemorySpanExporter
) -> None:
    house = House(spans.tracer)  # type: ignore[attr-defined]
    mark = request_id.set("r-17")
    token = context.attach(baggage.set_baggage("tenant", "zoo"))
    try:
        with house.tracer.start_as_current_span("caller") as caller:
            assert house.ask(way).status == "full"
    finally:
        context.detach(token)
        request_id.reset(mark)
    assert sorted(house.seen) == [(name, "r-17", "zoo") for name in PARTS]
    parts = [span for span in spans.get_finished_spans() if span.name != "caller"]
    assert sorted(span.name for span in parts) == PARTS
    parents = {span.parent.span_id if span.parent else None for span in parts}
    assert parents == {caller.get_span_context().span_id}


@every_way
@pytest.mark.parametrize("cap", [8, 2, 1])
def test_what_a_search_sets_is_seen_by_no_other_search_and_not_by_the_caller(
    way: str, cap: int
) -> None:
    """The question's own search in the caller's thread or task is apart: what it sets, the plain call would set too."""
    seen: dict[str, tuple[str, object]] = {}

    def look(query: str) -> None:
        seen[query] = set_by_search.get(), baggage.get_baggage("searched")
        set_by_search.set(query)
        context.attach(baggage.set_baggage("searched", query))

    def plain(query: str, top_k: int = 2) -> Any:
        look(query)
        return found(query, top_k)

    async def awaited(query: str, top_k: int = 2) -> Any:
        look(query)
        await asyncio.sleep(0)
        return found(query, top_k)

    def model(messages: Any) -> str:
        return json.dumps({"sub_queries": SUBS})

    async def amodel(messages: Any) -> str:
        return model(messages)

    settings = config(limits={"maxConcurrency": cap})
    middleware = qtm.QueryMiddleware(settings, client=amodel if way == "async" else model)
    wrapped = middleware.wrap(awaited if way == "async" else plain)

    async def caller() -> str:
        retrieval = wrapped.retrieve(QUERY) if way == "sync" else await wrapped.aretrieve(QUERY)
        assert retrieval.status == "full"
        return set_by_search.get()

    assert asyncio.run(caller()) in ({"nobody"} if way == "threads" else {QUERY})
    assert set_by_search.get() == "nobody"
    assert seen == dict.fromkeys((QUERY, *SUBS), ("nobody", None))
