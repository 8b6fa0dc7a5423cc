"""Spans and metrics of retrievals, as OpenTelemetry's own SDK gets them."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from importlib.metadata import version
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from qtmiddleware.integrations.opentelemetry import CAPTURE_CONTENT
from qtmiddleware.protocols import Reply
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.runtime.observing import describe_model
from qtmiddleware.types import Operation
from tests.support.retrieval_world import QUERY, REPLIES, search
from tests.support.telemetry_world import (
    REWRITE,
    Billing,
    Telemetry,
    aplain,
    is_nothing_current,
    plain,
)
from tests.support.waiting import PATIENCE, wait_until, with_enough_time

CITED = "Jaco is healthy [1]."
ANSWER = {"transformationType": "none", "answer": {"timeoutMs": 50_000}}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


# --- spans ----------------------------------------------------------------------------------------


class House:
    """A function, a model, an embedder and a reranker that each make a span of their own, as vendors' SDKs do."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._span = telemetry.tracer.start_as_current_span

    def search(self, query: Any, top_k: int = 4) -> Any:
        with self._span("their search"):
            return search(QUERY, top_k)

    async def asearch(self, query: Any, top_k: int = 4) -> Any:
        return self.search(query, top_k)

    def model(self, messages: Any) -> str:
        with self._span("their model"):
            return json.dumps({"rewrite": "Jaco's health concerns"})

    async def amodel(self, messages: Any) -> str:
        return self.model(messages)

    def embed(self, texts: Any) -> Any:
        with self._span("their embedder"):
            return [[0.0, 1.0] for _ in texts]

    def rerank(self, query: str, texts: Any) -> Any:
        with self._span("their reranker"):
            return [1.0 for _ in texts]


@pytest.mark.parametrize("is_async_model", [False, True])
@pytest.mark.parametrize("way", ["blocking", "awaiting", "awaiting a plain function"])
async def test_spans_of_others_nest_below_ours_and_ours_below_the_callers(
    way: str, is_async_model: bool, telemetry: Telemetry
) -> None:
    house = House(telemetry)
    wrapped = telemetry.wrap(
        house.asearch if way == "awaiting" else house.search,
        {**REWRITE, "rerank": {"enabled": True}},
        client=house.amodel if is_async_model else house.model,
        embed_many=house.embed,
        reranker=house.rerank,
    )
    with telemetry.tracer.start_as_current_span("request") as request:
        if way == "blocking":
            await asyncio.to_thread(wrapped.retrieve, QUERY)
        else:
            await wrapped.aretrieve(QUERY)
        assert trace.get_current_span() is request
    ((chat, parent),) = (it for it in telemetry.parents() if it[0].startswith("chat"))
    assert parent == "retrieval"
    assert [it for it in telemetry.parents() if not it[0].startswith("chat")] == [
        *[("embeddings", "retrieval"), ("embeddings", "search original"), ("request", "")],
        *[("rerank", "retrieval"), ("retrieval", "request")],
        *[("search original", "retrieval"), ("search rewrite", "retrieval")],
        *[("their embedder", "embeddings")] * 2,
        *[("their model", chat), ("their reranker", "rerank")],
        *[("their search", "search original"), ("their search", "search rewrite")],
    ]
    assert len({it.context.trace_id for it in telemetry.spans() if it.context}) == 1


@pytest.mark.parametrize("way", ["answer", "aanswer", "stream_answer", "astream_answer"])
async def test_an_answer_is_a_span_around_its_retrieval_and_its_call_however_it_is_had(
    way: str, telemetry: Telemetry
) -> None:
    had: Any = getattr(telemetry.wrap(plain, ANSWER, CITED), way)(QUERY)
    if way == "aanswer":
        await had
    elif way == "astream_answer":
        assert "".join([piece async for piece in had]) == CITED
    else:
        assert way == "answer" or "".join(had) == CITED
    assert telemetry.parents() == [
        ("answer", ""),
        ("chat small", "answer"),
        ("retrieval", "answer"),
        ("search original", "retrieval"),
    ]
    told = attributes(telemetry.span("answer"))
    assert (told["qtmiddleware.found"], told["qtmiddleware.citations"]) == (True, 1)
    assert is_nothing_current()


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_the_function_raises_is_an_error_of_the_search_and_the_retrieval(
    is_async: bool, telemetry: Telemetry
) -> None:
    def down(query: str, top_k: int = 4) -> Any:
        raise ConnectionError(query)

    wrapped = telemetry.wrap(down, {})
    with pytest.raises(ConnectionError):
        await wrapped.aretrieve(QUERY) if is_async else wrapped.retrieve(QUERY)
    for it in telemetry.spans():
        assert it.status.status_code is StatusCode.ERROR
        assert attributes(it)["error.type"] == "ConnectionError"
        assert not it.events
    assert telemetry.parents() == [("retrieval", ""), ("search original", "retrieval")]
    assert is_nothing_current()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_given_up_ends_its_span_then_and_its_own_spans_stay_below_it(is_async: bool) -> None:
    leave = threading.Event()
    begun: list[Telemetry] = []

    def ask(seconds: float) -> Telemetry:
        telemetry = Telemetry()

        def hanging(messages: Any) -> str:
            with telemetry.tracer.start_as_current_span("their model"):
                begun.append(telemetry)
                leave.wait(PATIENCE)
            return "{}"

        limits = {"llmTimeoutMs": int(1e3 * seconds), "deadlineMs": 600_000}
        config = {**REWRITE, "limits": limits, "breaker": {"failures": 0}}
        wrapped = telemetry.wrap(aplain if is_async else plain, config, client=hanging)
        found = asyncio.run(wrapped.aretrieve(QUERY)) if is_async else wrapped.retrieve(QUERY)
        assert [it.reason for it in found.degradations] == ["timeout"]
        return telemetry

    try:
        telemetry = with_enough_time(ask, lambda asked: asked in begun)
        (chat,) = (it for it in telemetry.spans() if it.name.startswith("chat"))
        assert attributes(chat)["qtmiddleware.outcome"] == "late"
        assert attributes(chat)["error.type"] == "timeout"
    finally:
        leave.set()
    wait_until(lambda: "their model" in [it.name for it in telemetry.spans()])
    assert telemetry.span("their model").parent == chat.context
    assert is_nothing_current()


async def test_a_cancelled_retrieval_ends_its_spans_and_leaves_none_behind(
    telemetry: Telemetry,
) -> None:
    begun = asyncio.Event()

    async def slow(query: str, top_k: int = 4) -> Any:
        begun.set()
        await asyncio.sleep(50)

    task = asyncio.ensure_future(telemetry.wrap(slow, {}).aretrieve(QUERY))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert telemetry.parents() == [("retrieval", ""), ("search original", "retrieval")]
    for it in telemetry.spans():
        assert attributes(it)["qtmiddleware.outcome"] == "cancelled"
        assert it.status.status_code is StatusCode.UNSET
    assert is_nothing_current()


async def test_a_stream_closed_in_another_task_or_thrown_away_leaves_nothing(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    stream = telemetry.wrap(aplain, ANSWER, CITED).astream_answer(QUERY)
    await anext(stream)
    assert is_nothing_current()
    await asyncio.create_task(stream.aclose())

    thrown = telemetry.wrap(plain, ANSWER, CITED).stream_answer(QUERY)
    next(thrown)
    await asyncio.to_thread(thrown.close)
    unread = telemetry.wrap(plain, ANSWER, CITED).stream_answer(QUERY)
    assert is_nothing_current()
    del unread
    gc.collect()
    assert not [it for it in caplog.records if it.name.startswith("opentelemetry")]


# --- content --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "is_captured"),
    [
        ("", False),
        ("false", False),
        ("EVENT_ONLY", False),
        ("true", True),
        (" SPAN_ONLY", True),
    ],
)
def test_the_usual_variable_alone_puts_content_into_spans_and_never_into_metrics(
    value: str, is_captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE_CONTENT, value)
    telemetry = Telemetry()
    telemetry.wrap(plain, ANSWER, CITED).answer(QUERY)
    for text in (QUERY, CITED):
        assert (text in "".join(it.to_json() for it in telemetry.spans())) is is_captured
        assert text not in repr(telemetry.points())
    if is_captured:
        chat, whole = (attributes(telemetry.span(name)) for name in ("chat small", "retrieval"))
        (said,) = json.loads(chat["gen_ai.output.messages"])
        parts = [{"type": "text", "content": CITED}]
        assert said == {"role": "assistant", "parts": parts, "finish_reason": "stop"}
        assert QUERY in chat["gen_ai.input.messages"]
        assert json.loads(chat["gen_ai.system_instructions"])[0]["type"] == "text"
        assert whole["gen_ai.retrieval.query.text"] == QUERY
        assert set(json.loads(whole["gen_ai.retrieval.documents"])[0]) == {"id", "score"}


@given(reason=st.text(), stage=st.text(), kind=st.text())
def test_no_text_makes_a_label_of_its_own(reason: str, stage: str, kind: str) -> None:
    telemetry = Telemetry()
    telemetry.observer.on_start(Operation(1, "search", kind))
    telemetry.observer.on_end(Operation(1, "search", kind, outcome="failed", reason=reason))
    ((labels, count),) = telemetry.points()["qtmiddleware.search.duration"]
    assert count == 1
    for label, text in (("error.type", reason), ("qtmiddleware.variant.kind", kind)):
        assert labels[label] in ("_OTHER", text[:64])
        assert labels[label].isascii()


# --- what spans and metrics say -------------------------------------------------------------------


def test_spans_are_named_and_attributed_by_the_conventions() -> None:
    telemetry = Telemetry(provider_name="openai", data_source_id="guides")
    config = {**REWRITE, "escalation": {"mode": "always"}}
    text = json.dumps(REPLIES["rewrite"])
    reply = Reply(
        text,
        input_tokens=30,
        output_tokens=9,
        cost_usd=0.25,
        model="m-1",
        id="c-7",
    )
    found = telemetry.wrap(plain, config, client=Billing(reply)).retrieve(QUERY, top_k=3)
    whole, chat = telemetry.span("retrieval guides"), telemetry.span("chat small")
    assert (whole.kind, whole.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert chat.kind is SpanKind.CLIENT
    # The page of telemetry names every attribute; these are their values.
    assert attributes(whole).items() >= {
        ("gen_ai.operation.name", "retrieval"),
        ("gen_ai.data_source.id", "guides"),
        ("gen_ai.retrieval.top_k", 3),
        ("qtmiddleware.status", "full"),
        ("qtmiddleware.query_id", found.trace.query_id),
        ("qtmiddleware.decision", "always"),
        ("qtmiddleware.passages", 3),
        ("qtmiddleware.searches", 2),
        ("qtmiddleware.model_calls", 1),
        ("qtmiddleware.cost", 0.25),
    }
    assert attributes(chat).items() >= {
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", "small"),
        ("gen_ai.prompt.name", "rewrite"),
        ("gen_ai.response.model", "m-1"),
        ("gen_ai.response.id", "c-7"),
        ("gen_ai.usage.input_tokens", 30),
        ("gen_ai.response.finish_reasons", ("stop",)),
        ("qtmiddleware.outcome", "ok"),
        ("qtmiddleware.cost", 0.25),
    }
    variant = attributes(telemetry.span("search rewrite"))
    assert variant["qtmiddleware.variant.kind"] == "rewrite"
    assert (variant["gen_ai.data_source.id"], variant["gen_ai.retrieval.top_k"]) == ("guides", 50)
    for it in telemetry.spans():
        assert whole.start_time <= it.start_time < it.end_time  # type: ignore[operator]
    scopes = {it.instrumentation_scope for it in telemetry.spans()} | telemetry.scopes()
    assert {(it.name, it.version, it.schema_url) for it in scopes if it} == {
        ("qtmiddleware", version("qtmiddleware"), "https://opentelemetry.io/schemas/gen-ai/0.1.0")
    }


def test_metrics_count_requests_calls_tokens_searches_and_cost() -> None:
    telemetry = Telemetry(provider_name="openai")
    text = json.dumps(REPLIES["rewrite"])
    reply = Reply(text, input_tokens=30, output_tokens=9, cost_usd=0.25)
    config = {**REWRITE, "cache": {"enabled": False}}
    wrapped = telemetry.wrap(plain, config, client=Billing(reply))
    wrapped.retrieve(QUERY)
    wrapped.retrieve(QUERY)
    ok = {"qtmiddleware.outcome": "ok"}
    names = ("operation.name", "chat"), ("provider.name", "openai"), ("request.model", "small")
    chat = {f"gen_ai.{name}": value for name, value in names}
    request = {"qtmiddleware.operation": "retrieval", "qtmiddleware.status": "full"}
    points = telemetry.points()
    points["qtmiddleware.search.duration"].sort(key=str)
    assert points == {
        "qtmiddleware.request.duration": [(request, 2)],
        "qtmiddleware.search.duration": [
            ({**ok, "qtmiddleware.variant.kind": "original"}, 2),
            ({**ok, "qtmiddleware.variant.kind": "rewrite"}, 2),
        ],
        "gen_ai.client.inference.duration": [({**ok, **chat}, 2)],
        "gen_ai.client.inference.operation.input_tokens": [(chat, 2)],
        "gen_ai.client.inference.operation.output_tokens": [(chat, 2)],
        "qtmiddleware.cost": [(chat, 0.5)],
    }


def test_an_answers_calls_and_degradations_are_counted_once(telemetry: Telemetry) -> None:
    reply = Reply(
        "Jaco is healthy [1] [9].",
        input_tokens=30,
        output_tokens=9,
        cost_usd=0.5,
    )
    answer = telemetry.wrap(plain, ANSWER, client=Billing(reply)).answer(QUERY)
    assert [it.reason for it in answer.degradations] == ["invented"]
    told = [attributes(telemetry.span(it)) for it in ("retrieval", "chat small")]
    assert [it["qtmiddleware.cost"] for it in told] == [0, 0.5]
    points = telemetry.points()
    assert [value for _, value in points["qtmiddleware.cost"]] == [0.5]
    degraded = {"qtmiddleware.stage": "citations", "qtmiddleware.reason": "invented"}
    assert points["qtmiddleware.degradations"] == [(degraded, 1)]


# --- whose model it is ----------------------------------------------------------------------------


def test_the_provider_is_that_of_the_api_unless_it_is_given() -> None:
    with openai.OpenAI(api_key="sk-key") as client:
        known = describe_model(OpenAIModel("m", client=client))
    assert known == {"model": "m", "provider": "openai"}
    for own in ("", "vendor"):
        telemetry = Telemetry(provider_name=own)
        telemetry.observer.on_start(Operation(1, "model", **known))
        telemetry.observer.on_end(Operation(1, "model", outcome="ok", **known))
        told = attributes(telemetry.spans()[0])
        assert told["gen_ai.provider.name"] == (own or "openai")


# --- bad days -------------------------------------------------------------------------------------
