"""Spans and metrics of retrievals, as OpenTelemetry's own SDK gets them."""

from __future__ import annotations

import asyncio
import builtins
import gc
import importlib
import json
import re
import sys
import threading
import types
from importlib.metadata import version
from typing import Any, ClassVar

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, metrics, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import qtmiddleware as qtm
from qtmiddleware.config.settings import RerankSettings, Settings
from qtmiddleware.errors import MissingExtra, ModelError
from qtmiddleware.integrations import opentelemetry as ours
from qtmiddleware.integrations.opentelemetry import CAPTURE_CONTENT, OpenTelemetryObserver, outbox
from qtmiddleware.integrations.opentelemetry.names import CONTENT, METRICS, SPANS, Names
from qtmiddleware.kit.embedding import MiniLMEmbedder, OpenAIEmbedder
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.embedding import query_embedder
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.openai_client import read_host_and_port
from qtmiddleware.providers.rerankers import make_reranker
from qtmiddleware.runtime.observing import describe_model
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline, Operation
from tests.support.completions import completion, embeddings
from tests.support.retrieval_world import QUERY, REPLIES, search
from tests.support.telemetry_world import (
    REWRITE,
    Billing,
    Hanging,
    Telemetry,
    aplain,
    is_nothing_current,
    plain,
)
from tests.support.waiting import PATIENCE, wait_until, with_enough_time

WHOLE = [
    ("chat small", "retrieval"),
    ("retrieval", ""),
    ("search original", "retrieval"),
    ("search rewrite", "retrieval"),
]
CITED = "Jaco is healthy [1]."
ANSWER = {"transformationType": "none", "answer": {"timeoutMs": 50_000}}
ANSWERED = [
    ("answer", ""),
    ("chat small", "answer"),
    ("retrieval", "answer"),
    ("search original", "retrieval"),
]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


# --- spans ----------------------------------------------------------------------------------------


async def test_a_retrieval_is_a_span_with_a_child_for_everything_done_in_it() -> None:
    for fn, way in (
        (plain, "retrieve"),
        (aplain, "aretrieve"),
        (plain, "aretrieve"),
        (plain, "__call__"),
    ):
        telemetry = Telemetry()
        found = getattr(telemetry.wrap(fn), way)(QUERY)
        if way == "aretrieve":
            await found
        assert telemetry.parents() == WHOLE


def test_spans_are_named_and_attributed_by_the_conventions() -> None:
    telemetry = Telemetry(provider_name="openai", data_source_id="guides")
    config = {**REWRITE, "store": {"readPrice": 16}, "escalation": {"mode": "always"}}
    reply = Reply(json.dumps(REPLIES["rewrite"]), input_tokens=30, output_tokens=9, cost_usd=0.25)
    found = telemetry.wrap(plain, config, client=Billing(reply)).retrieve(QUERY, top_k=3)

    whole = telemetry.span("retrieval guides")
    assert (whole.kind, whole.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(whole.attributes or {}) == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": "guides",
        "gen_ai.retrieval.top_k": 3,
        "qtmiddleware.operation": "retrieval",
        "qtmiddleware.outcome": "ok",
        "qtmiddleware.status": "full",
        "qtmiddleware.query_id": found.trace.query_id,
        "qtmiddleware.decision": "always",
        "qtmiddleware.is_unsure": False,
        "qtmiddleware.passages": 3,
        "qtmiddleware.searches": 2,
        "qtmiddleware.model_calls": 1,
        "qtmiddleware.cache_hits": 0,
        "qtmiddleware.read_units": 2,
        "qtmiddleware.cost": 0.25,
        "qtmiddleware.read_cost": pytest.approx(2 * 16 / 1e6),
    }
    chat = telemetry.span("chat small")
    assert chat.kind is SpanKind.CLIENT
    told = dict(chat.attributes or {})
    assert told.pop("gen_ai.prompt.version").startswith("rewrite/")
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "small",
        "gen_ai.request.max_tokens": 800,
        "gen_ai.output.type": "json",
        "gen_ai.prompt.name": "rewrite",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.response.finish_reasons": ("stop",),
        "qtmiddleware.operation": "model",
        "qtmiddleware.outcome": "ok",
        "qtmiddleware.model_calls": 1,
        "qtmiddleware.cost": 0.25,
    }
    variant = dict(telemetry.span("search rewrite").attributes or {})
    assert (variant["qtmiddleware.variant.kind"], variant["qtmiddleware.variant.weight"]) == (
        "rewrite",
        0.6,
    )
    assert variant["gen_ai.data_source.id"] == "guides"
    for it in telemetry.spans():
        assert whole.start_time <= it.start_time < it.end_time  # type: ignore[operator]


def test_embeddings_and_reranking_have_spans() -> None:
    def nearest(vector: list[float], top_k: int = 4) -> Any:
        return search(QUERY, top_k)

    telemetry = Telemetry()
    config = {**REWRITE, "rerank": {"enabled": True}}
    wrapped = telemetry.wrap(
        nearest,
        config,
        embed=lambda texts: [[0.0, 1.0]] * len(texts),
        reranker=lambda query, texts: [1.0] * len(texts),
    )
    wrapped.retrieve(QUERY)
    assert ("embeddings", "search original") in telemetry.parents()
    assert ("embeddings", "retrieval") in telemetry.parents()
    assert ("rerank", "retrieval") in telemetry.parents()
    assert (telemetry.span("rerank").attributes or {})["qtmiddleware.texts"] > 1  # type: ignore[operator]


class Minister:
    """An embedder of the user's own, or a reranker, that has the name of a model."""

    name = "small-embed"
    dimension = 2

    def embed(self, texts: Any) -> Any:
        return [[0.0, 1.0] for _ in texts]

    def rerank(self, query: str, texts: Any) -> Any:
        return [1.0 for _ in texts]


def test_spans_name_the_model_that_embeds_and_the_one_that_reranks() -> None:
    telemetry = Telemetry(provider_name="vendor")
    config = {**REWRITE, "rerank": {"enabled": True}}
    telemetry.wrap(
        lambda vector, top_k=4: search(QUERY, top_k), config, embed=Minister(), reranker=Minister()
    ).retrieve(QUERY)
    assert ("embeddings small-embed", "search original") in telemetry.parents()
    assert ("embeddings small-embed", "retrieval") in telemetry.parents()
    embedded = [
        dict(it.attributes or {}) for it in telemetry.spans() if it.name == "embeddings small-embed"
    ]
    assert {(it[Names.MODEL], it[Names.PROVIDER]) for it in embedded} == {("small-embed", "vendor")}
    reranked = dict(telemetry.span("rerank small-embed").attributes or {})
    assert reranked[Names.MODEL] == "small-embed"
    assert Names.PROVIDER not in reranked
    ((labels, _),) = telemetry.points()["gen_ai.client.embeddings.duration"]
    assert labels[Names.MODEL] == "small-embed"


def find_server(address: str) -> tuple[str, int]:
    """Host and port, told apart by hand."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.partition("/")[0].partition(":")
    return host, int(port or {"http": 80, "https": 443}[scheme])


@pytest.mark.parametrize(
    ("address", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("http://localhost:8000/v1", "openai"),
        ("https://mine.openai.azure.com/openai/deployments/a", "azure.ai.openai"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gcp.gemini"),
        ("https://europe-west1-aiplatform.googleapis.com/v1", "gcp.vertex_ai"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", "aws.bedrock"),
        ("https://api.mistral.ai/v1", "mistral_ai"),
        ("https://api.anthropic.com/v1/", "anthropic"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://mistral.ai.evil.example/v1", "openai"),
    ],
)
def test_the_provider_is_told_by_the_address_unless_it_is_given(
    address: str, provider: str
) -> None:
    with openai.OpenAI(base_url=address, api_key="sk-key") as client:
        known = (
            describe_model(OpenAIModel("m", client=client)),
            describe_model(OpenAIEmbedder("m", client=client)),
        )
    assert known == ({"model": "m", "provider": provider, "server": find_server(address)},) * 2
    for own, told in (("", provider), ("vendor", "vendor")):
        telemetry = Telemetry(provider_name=own)
        with openai.OpenAI(base_url=address, api_key="sk-key") as client:
            model = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=client).model
        telemetry.observer.on_start(Operation(1, "model", **describe_model(model)))
        telemetry.observer.on_end(Operation(1, "model", outcome="ok", **describe_model(model)))
        attributes = telemetry.spans()[0].attributes or {}
        assert attributes[Names.PROVIDER] == told
        assert (attributes[Names.SERVER_ADDRESS], attributes[Names.SERVER_PORT]) == find_server(
            address
        )


def test_a_reranker_an_embedder_and_a_function_are_described_as_far_as_they_are_known() -> None:
    hosted = describe_model(
        make_reranker(None, Settings(rerank=RerankSettings(model="pinecone/pinecone-rerank-v0")))
    )
    assert hosted == {"model": "pinecone-rerank-v0", "provider": "pinecone"}
    assert describe_model(MiniLMEmbedder()) == {"model": "all-MiniLM-L6-v2", "provider": ""}
    hosted = describe_model(
        query_embedder(OpenAIEmbedder("text-embedding-3-small", base_url="http://[::1]:81/v1"))
    )
    assert (hosted["provider"], hosted["server"]) == ("openai", ("::1", 81))
    assert describe_model(lambda texts: texts) == {"model": "", "provider": ""}


def test_without_an_address_a_model_of_our_own_is_at_openai(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_BASE_URL", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for model in (OpenAIModel("m"), OpenAIEmbedder("m")):
        assert describe_model(model)["server"] == ("api.openai.com", 443)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret@models.example:8080/v1?key=secret")
    for model in (OpenAIModel("m"), OpenAIEmbedder("m")):
        assert describe_model(model)["server"] == ("models.example", 8080)


@given(st.text() | st.text(alphabet="htps:/[]@.%0:1a#?").map("https://".__add__))
def test_any_address_is_a_host_and_a_port_or_nothing(address: str) -> None:
    match read_host_and_port(address):
        case (host, port):
            assert host
            assert 0 < port < 65_536
        case known:
            assert known is None


@pytest.mark.parametrize("server", ["a.example", ("a.example",), ("a.example", "80"), None, 80])
def test_what_an_object_of_the_user_calls_its_server_is_told_only_if_it_is_one(server: Any) -> None:
    assert "server" not in describe_model(types.SimpleNamespace(name="m", server=server))


def test_a_function_has_the_provider_that_nobody_knows(telemetry: Telemetry) -> None:
    def ask(messages: Any) -> str:
        return json.dumps(REPLIES["rewrite"])

    def embed(texts: list[str]) -> list[list[float]]:
        return [[0.0, 1.0]] * len(texts)

    telemetry.wrap(lambda vector, top_k=4: search(QUERY, top_k), client=ask, embed=embed).retrieve(
        QUERY
    )
    told = {it.name.split()[0]: dict(it.attributes or {}) for it in telemetry.spans()}
    assert told["chat"][Names.PROVIDER] == told["embeddings"][Names.PROVIDER] == "_OTHER"
    assert Names.SERVER_ADDRESS not in told["chat"]
    points = telemetry.points()
    for metric in ("gen_ai.client.inference.duration", "gen_ai.client.embeddings.duration"):
        assert {labels[Names.PROVIDER] for labels, _ in points[metric]} == {"_OTHER"}


def test_a_chat_names_the_model_and_the_completion_as_the_service_does(
    telemetry: Telemetry,
) -> None:
    def ask(messages: Any) -> dict[str, Any]:
        return completion(json.dumps(REPLIES["rewrite"]), model="gpt-6-luna-2026-08-01") | {
            "id": "chatcmpl-7"
        }

    telemetry.wrap(plain, client=ask).retrieve(QUERY)
    (chat,) = (dict(it.attributes or {}) for it in telemetry.spans() if it.name.startswith("chat"))
    assert (chat["gen_ai.response.model"], chat["gen_ai.response.id"]) == (
        "gpt-6-luna-2026-08-01",
        "chatcmpl-7",
    )
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (100, 20)
    points = telemetry.points()
    for name in ("duration", "usage.input_tokens", "operation.output_tokens"):
        ((labels, _),) = points[f"gen_ai.client.inference.{name}"]
        assert labels["gen_ai.response.model"] == "gpt-6-luna-2026-08-01"
        assert "gen_ai.response.id" not in labels


def test_tokens_that_nobody_counted_are_left_out(telemetry: Telemetry) -> None:
    telemetry.wrap(plain).retrieve(QUERY)
    told = telemetry.span("chat small").attributes or {}
    assert not [it for it in told if it.startswith("gen_ai.usage.")]
    assert not [
        it for it in told if it.startswith("gen_ai.response.") and it != Names.FINISH_REASONS
    ]
    assert not [it for it in telemetry.points() if it.endswith("tokens")]


def test_embeddings_have_the_tokens_that_their_service_counted_and_the_length_of_the_vectors(
    telemetry: Telemetry,
) -> None:
    def embed(texts: list[str]) -> dict[str, Any]:
        made = embeddings([[0.0, 1.0, 2.0]] * len(texts))
        return {**made, "usage": {"prompt_tokens": 7 * len(texts), "total_tokens": 7 * len(texts)}}

    wrapped = telemetry.wrap(
        lambda vector, top_k=4: search(QUERY, top_k), embed=embed, client=lambda _: ""
    )
    wrapped.retrieve(QUERY)
    told = [dict(it.attributes or {}) for it in telemetry.spans() if it.name == "embeddings"]
    # The first call learns what the function takes, by a text more.
    assert told[0][Names.DIMENSIONS] == 3
    wrapped.retrieve(QUERY)
    last = [dict(it.attributes or {}) for it in telemetry.spans() if it.name == "embeddings"][-1]
    assert (last[Names.INPUT_TOKENS], last[Names.TEXTS], last[Names.DIMENSIONS]) == (
        7 * last[Names.TEXTS],
        1,
        3,
    )


def test_spans_and_metrics_say_which_version_of_what_they_follow(telemetry: Telemetry) -> None:
    telemetry.wrap(plain).retrieve(QUERY)
    scopes = {it.instrumentation_scope for it in telemetry.spans()} | telemetry.scopes()
    assert {(it.name, it.version, it.schema_url) for it in scopes if it} == {
        ("qtmiddleware", version("qtmiddleware"), "https://opentelemetry.io/schemas/gen-ai/0.1.0")
    }


class Watched(ScriptedModel):
    """A model, and an embedder, that notes when somebody wants to know who serves it."""

    asked: ClassVar[list[str]] = []
    dimension = 2

    @property
    def provider(self) -> str:
        self.asked.append("provider")
        return "watched"

    @property
    def server(self) -> tuple[str, int]:
        self.asked.append("server")
        return "watched.example", 443

    def embed(self, texts: Any) -> list[list[float]]:
        return [[0.0, 1.0]] * len(texts)


def test_without_observers_nobody_asks_who_serves_a_model() -> None:
    def nearest(vector: Any, top_k: int = 4) -> Any:
        return search(QUERY, top_k)

    model = Watched(lambda prompt: CITED if prompt.mode == "answer" else REPLIES["rewrite"])
    config = {**REWRITE, "answer": {"timeoutMs": 50_000}}
    wrapped = qtm.QueryMiddleware(config, client=model).wrap(nearest, embed=model)
    Watched.asked.clear()
    assert wrapped.retrieve(QUERY).status == "full"
    assert "".join(wrapped.stream_answer(QUERY)) == CITED
    assert wrapped.answer(QUERY).text == CITED
    assert Watched.asked == []


def test_a_transformation_alone_has_a_span(telemetry: Telemetry) -> None:
    telemetry.wrap(plain).middleware.transform(QUERY)
    assert telemetry.parents() == [("chat small", "transform"), ("transform", "")]


async def test_an_answer_is_a_span_around_its_retrieval_and_its_call_however_it_is_had() -> None:
    async def had(wrapped: Any, way: str) -> None:
        if way == "answer":
            wrapped.answer(QUERY)
        elif way == "aanswer":
            await wrapped.aanswer(QUERY)
        elif way == "stream_answer":
            assert "".join(wrapped.stream_answer(QUERY)) == CITED
        else:
            assert "".join([piece async for piece in wrapped.astream_answer(QUERY)]) == CITED

    for way in ("answer", "aanswer", "stream_answer", "astream_answer"):
        telemetry = Telemetry()
        await had(telemetry.wrap(plain, ANSWER, CITED), way)
        assert telemetry.parents() == ANSWERED
        told = telemetry.span("answer").attributes or {}
        assert (told["qtmiddleware.found"], told["qtmiddleware.citations"]) == (True, 1)
        assert is_nothing_current()


class Charging:
    """A model that takes a quarter of a dollar for a rewrite, half of one for an answer, and one for parts of it."""

    name = "small"
    usd: ClassVar = {
        "rewrite": 0.25,
        "decompose": 0.25,
        "answer": 0.5,
        "synthesis": 0.5,
        "sub_answer": 1.0,
    }

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        text = CITED if prompt.mode not in REPLIES else json.dumps(REPLIES[prompt.mode])
        return Reply(text, input_tokens=30, output_tokens=9, cost_usd=self.usd[prompt.mode])

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)


@pytest.mark.parametrize("way", ["answer", "aanswer", "stream_answer", "astream_answer"])
async def test_a_retrieval_has_its_own_calls_and_cost_and_its_answer_the_others(way: str) -> None:
    telemetry = Telemetry()
    config = {**REWRITE, "answer": {"timeoutMs": 50_000}}
    wrapped = telemetry.wrap(plain, config, client=Charging())
    if way == "answer":
        wrapped.answer(QUERY)
    elif way == "aanswer":
        await wrapped.aanswer(QUERY)
    elif way == "stream_answer":
        assert list(wrapped.stream_answer(QUERY))
    else:
        assert [piece async for piece in wrapped.astream_answer(QUERY)]
    costs = {it: telemetry.span(it).attributes or {} for it in ("retrieval", "answer")}
    assert {it: (told[Names.MODEL_CALLS], told[Names.COST]) for it, told in costs.items()} == {
        "retrieval": (1, 0.25),
        "answer": (1, 0.5),
    }
    assert not telemetry.observer._retrieval_usages
    points = telemetry.points()
    assert points["qtmiddleware.cost"] == [({"qtmiddleware.cost.of": "models"}, 0.75)]
    stages = {
        labels["qtmiddleware.stage"]: count
        for labels, count in points["qtmiddleware.stage.duration"]
    }
    assert stages["answer"] == stages["transform.rewrite"] == stages["fuse"] == 1


def test_the_parts_of_a_synthesis_are_the_answers_and_their_searches_those_of_their_own_retrievals() -> (
    None
):
    telemetry = Telemetry()
    calls: list[str] = []

    def counted(query: str, top_k: int = 4) -> Any:
        calls.append(query)
        return search(query, top_k)

    limits = {"limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}}
    config = {
        "transformationType": "decompose",
        "answer": {"mode": "synthesis", "timeoutMs": 50_000},
        **limits,
    }
    answer = telemetry.wrap(counted, config, client=Charging()).answer(QUERY)
    assert len(answer.sub_answers) == 2
    spans = telemetry.spans()
    retrievals = [dict(it.attributes or {}) for it in spans if it.name == "retrieval"]
    assert [it[Names.MODEL_CALLS] for it in retrievals] == [1, 0, 0]
    assert [it[Names.COST] for it in retrievals] == [0.25, 0, 0]
    told = telemetry.span("answer").attributes or {}
    assert (told[Names.MODEL_CALLS], told[Names.COST]) == (3, 2.5)
    reads = sum(value for _, value in telemetry.points()["qtmiddleware.read_units"])
    assert reads == sum(it[Names.READ_UNITS] for it in retrievals) == len(calls)


def test_an_answer_that_fails_leaves_its_retrieval_with_what_that_cost(
    telemetry: Telemetry,
) -> None:
    def script(prompt: Prompt) -> Any:
        return ModelError("refused") if prompt.mode == "answer" else REPLIES["rewrite"]

    with pytest.raises(ModelError):
        telemetry.wrap(plain, {**REWRITE, "answer": {"timeoutMs": 50_000}}, script).answer(QUERY)
    assert (telemetry.span("retrieval").attributes or {})[Names.MODEL_CALLS] == 1
    assert Names.COST not in (telemetry.span("answer").attributes or {})
    assert not telemetry.observer._retrieval_usages


def test_a_degraded_retrieval_says_what_went_wrong_and_is_no_error(telemetry: Telemetry) -> None:
    telemetry.wrap(plain, script=ModelError("rate_limited")).retrieve(QUERY)
    whole, chat = telemetry.span("retrieval"), telemetry.span("chat small")
    assert whole.status.status_code is StatusCode.UNSET
    assert (whole.attributes or {})["qtmiddleware.status"] == "degraded"
    assert (whole.attributes or {})["qtmiddleware.degradations"] == (
        "transform.rewrite rate_limited",
    )
    assert chat.status.status_code is StatusCode.ERROR
    assert chat.status.description is None
    assert (chat.attributes or {})["error.type"] == "rate_limited"


async def test_what_the_function_raises_is_an_error_of_the_search_and_the_retrieval() -> None:
    def down(query: str, top_k: int = 4) -> Any:
        raise ConnectionError(query)

    for way in ("retrieve", "aretrieve"):
        telemetry = Telemetry()
        wrapped = telemetry.wrap(down, {})
        with pytest.raises(ConnectionError):
            wrapped.retrieve(QUERY) if way == "retrieve" else await wrapped.aretrieve(QUERY)
        for it in telemetry.spans():
            assert it.status.status_code is StatusCode.ERROR
            assert (it.attributes or {})["error.type"] == "ConnectionError"
            assert not it.events
        assert telemetry.parents() == [("retrieval", ""), ("search original", "retrieval")]
        assert is_nothing_current()


# --- whose child a span is ------------------------------------------------------------------------


class House:
    """A function, a model, an embedder and a reranker that each make a span of their own, as vendors' SDKs do."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer = telemetry.tracer

    def search(self, query: Any, top_k: int = 4) -> Any:
        with self._tracer.start_as_current_span("their search"):
            return search(QUERY, top_k)

    async def asearch(self, query: Any, top_k: int = 4) -> Any:
        with self._tracer.start_as_current_span("their search"):
            await asyncio.sleep(0)
            return search(QUERY, top_k)

    def model(self, messages: Any) -> str:
        with self._tracer.start_as_current_span("their model"):
            return json.dumps(REPLIES["rewrite"])

    async def amodel(self, messages: Any) -> str:
        with self._tracer.start_as_current_span("their model"):
            await asyncio.sleep(0)
            return json.dumps(REPLIES["rewrite"])

    def embed(self, texts: Any) -> Any:
        with self._tracer.start_as_current_span("their embedder"):
            return [[0.0, 1.0] for _ in texts]

    def rerank(self, query: str, texts: Any) -> Any:
        with self._tracer.start_as_current_span("their reranker"):
            return [1.0 for _ in texts]


@pytest.mark.parametrize("is_async_model", [False, True])
@pytest.mark.parametrize("way", ["blocking", "awaiting", "awaiting a plain function"])
async def test_spans_of_others_nest_below_ours_and_ours_below_the_callers(
    way: str, is_async_model: bool
) -> None:
    telemetry = Telemetry()
    house = House(telemetry)
    config = {**REWRITE, "rerank": {"enabled": True}}
    wrapped = telemetry.wrap(
        house.asearch if way == "awaiting" else house.search,
        config,
        client=house.amodel if is_async_model else house.model,
        embed=house.embed,
        reranker=house.rerank,
    )
    with telemetry.tracer.start_as_current_span("request") as request:
        if way == "blocking":
            await asyncio.to_thread(wrapped.retrieve, QUERY)
        else:
            await wrapped.aretrieve(QUERY)
        assert trace.get_current_span() is request
    nested = {name: parent for name, parent in telemetry.parents() if name.startswith("their")}
    chat = next(name for name, _ in telemetry.parents() if name.startswith("chat"))
    assert nested["their model"] == chat
    assert nested["their embedder"] == "embeddings"
    assert nested["their reranker"] == "rerank"
    searches = sorted(parent for name, parent in telemetry.parents() if name == "their search")
    assert searches == ["search original", "search rewrite"]
    assert ("retrieval", "request") in telemetry.parents()
    assert len({it.context.trace_id for it in telemetry.spans() if it.context}) == 1


def test_what_the_caller_set_beside_the_span_is_kept(telemetry: Telemetry) -> None:
    seen = []

    def fn(query: str, top_k: int = 4) -> Any:
        seen.append(baggage.get_baggage("tenant"))
        return search(query, top_k)

    token = context.attach(baggage.set_baggage("tenant", "a"))
    telemetry.wrap(fn).retrieve(QUERY)
    context.detach(token)
    assert seen == ["a", "a"]


def test_one_middleware_within_the_function_of_another_is_a_child_of_its_search(
    telemetry: Telemetry,
) -> None:
    inner = telemetry.wrap(lambda query, top_k=4: search(query, top_k), {})

    def fn(query: str, top_k: int = 4) -> Any:
        return inner.retrieve(query, top_k=top_k).response

    telemetry.wrap(fn, {}).retrieve(QUERY)
    assert telemetry.parents() == [
        ("retrieval", ""),
        ("retrieval", "search original"),
        ("search original", "retrieval"),
        ("search original", "retrieval"),
    ]


def test_many_threads_and_tasks_at_once_keep_their_traces_apart(telemetry: Telemetry) -> None:
    house = House(telemetry)
    blocking = telemetry.wrap(house.search, client=house.model)
    awaiting = telemetry.wrap(house.asearch, client=house.amodel)
    off = {"cache": {"enabled": False}}
    left = []

    def work(name: str) -> None:
        for turn in range(4):
            with telemetry.tracer.start_as_current_span(f"request {name} {turn}"):
                blocking.retrieve(QUERY, config=off)
        left.append(is_nothing_current())

    async def awork(name: str) -> None:
        with telemetry.tracer.start_as_current_span(f"request {name}"):
            await awaiting.aretrieve(QUERY, config=off)

    async def all_tasks() -> None:
        await asyncio.gather(*(awork(f"task {number}") for number in range(16)))
        left.append(is_nothing_current())

    threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(6)]
    threads.append(threading.Thread(target=lambda: asyncio.run(all_tasks())))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert left == [True] * 7
    traces: dict[int, list[str]] = {}
    for it in telemetry.spans():
        assert it.context is not None
        traces.setdefault(it.context.trace_id, []).append(re.sub(r"request .*", "request", it.name))
    assert len(traces) == 6 * 4 + 16
    for names in traces.values():
        whole = [
            "request",
            "retrieval",
            "search original",
            "search rewrite",
            "their model",
            "their search",
            "their search",
        ]
        assert sorted(name for name in names if not name.startswith("chat")) == whole
    assert not telemetry.observer._open


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_given_up_ends_its_span_then_and_its_own_spans_stay_below_it(is_async: bool) -> None:
    leave, left = threading.Event(), threading.Event()
    begun: list[Telemetry] = []

    def ask(seconds: float) -> Telemetry:
        telemetry = Telemetry()

        def hanging(messages: Any) -> str:
            with telemetry.tracer.start_as_current_span("their model"):
                begun.append(telemetry)
                leave.wait(PATIENCE)
            left.set()
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
        assert (chat.attributes or {})["qtmiddleware.outcome"] == "late"
        assert (chat.attributes or {})["error.type"] == "timeout"
    finally:
        leave.set()
    assert left.wait(PATIENCE)
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
    assert {(it.attributes or {})["qtmiddleware.outcome"] for it in telemetry.spans()} == {
        "cancelled"
    }
    assert {it.status.status_code for it in telemetry.spans()} == {StatusCode.UNSET}
    assert is_nothing_current()


def test_between_the_pieces_of_a_stream_the_readers_own_span_is_current(
    telemetry: Telemetry,
) -> None:
    with telemetry.tracer.start_as_current_span("request") as request:
        with telemetry.wrap(plain, ANSWER, CITED).stream_answer(QUERY) as pieces:
            assert trace.get_current_span() is request
            next(pieces)
            assert trace.get_current_span() is request
        assert trace.get_current_span() is request
    assert (telemetry.span("answer").attributes or {})["qtmiddleware.outcome"] == "cancelled"
    assert telemetry.parents()[1] == ("chat small", "answer")


async def test_a_stream_closed_in_another_task_or_thrown_away_leaves_nothing(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    stream = telemetry.wrap(aplain, ANSWER, CITED).astream_answer(QUERY)
    await anext(stream)
    assert is_nothing_current()
    await asyncio.create_task(stream.aclose())
    assert is_nothing_current()

    thrown = telemetry.wrap(plain, ANSWER, CITED).stream_answer(QUERY)
    next(thrown)
    done = threading.Thread(target=thrown.close)
    done.start()
    done.join()
    unread = telemetry.wrap(plain, ANSWER, CITED).stream_answer(QUERY)
    assert is_nothing_current()
    del unread
    gc.collect()
    assert not [it for it in caplog.records if it.name.startswith("opentelemetry")]


def test_the_model_of_a_stream_has_its_spans_below_ours(telemetry: Telemetry) -> None:
    def model(messages: Any) -> str:
        with telemetry.tracer.start_as_current_span("their model"):
            return CITED

    list(telemetry.wrap(plain, ANSWER, client=model).stream_answer(QUERY))
    (parent,) = (parent for name, parent in telemetry.parents() if name == "their model")
    assert parent.startswith("chat")


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_count_requests_stages_calls_tokens_searches_reads_and_cost() -> None:
    telemetry = Telemetry(provider_name="openai")
    reply = Reply(json.dumps(REPLIES["rewrite"]), input_tokens=30, output_tokens=9, cost_usd=0.25)
    config = {**REWRITE, "store": {"readPrice": 1e6}, "cache": {"enabled": False}}
    wrapped = telemetry.wrap(plain, config, client=Billing(reply))
    wrapped.retrieve(QUERY)
    wrapped.retrieve(QUERY)
    points = telemetry.points()
    ok = {"qtmiddleware.outcome": "ok"}
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "small",
    }
    assert points["qtmiddleware.request.duration"] == [
        ({"qtmiddleware.operation": "retrieval", "qtmiddleware.status": "full"}, 2)
    ]
    assert points["gen_ai.client.inference.duration"] == [({**ok, **chat}, 2)]
    assert points["gen_ai.client.inference.usage.input_tokens"] == [
        ({**chat, "gen_ai.token.modality": "text"}, 60)
    ]
    assert points["gen_ai.client.inference.usage.output_tokens"] == [
        ({**chat, "gen_ai.token.modality": "text"}, 18)
    ]
    assert points["gen_ai.client.inference.operation.input_tokens"] == [(chat, 2)]
    assert points["gen_ai.client.inference.operation.output_tokens"] == [(chat, 2)]
    assert sorted(points["qtmiddleware.search.duration"], key=str) == [
        ({**ok, "qtmiddleware.variant.kind": "original"}, 2),
        ({**ok, "qtmiddleware.variant.kind": "rewrite"}, 2),
    ]
    assert sorted(points["qtmiddleware.cost"], key=str) == [
        ({"qtmiddleware.cost.of": "models"}, 0.5),
        ({"qtmiddleware.cost.of": "searches"}, 4),
    ]
    assert points["qtmiddleware.read_units"] == [({}, 4)]
    stages = {
        labels["qtmiddleware.stage"]: count
        for labels, count in points["qtmiddleware.stage.duration"]
    }
    assert stages == dict.fromkeys((it.name for it in wrapped.retrieve(QUERY).trace.stages), 2)
    assert "qtmiddleware.degradations" not in points


def test_metrics_tell_what_went_wrong_by_stage_and_reason(telemetry: Telemetry) -> None:
    def failing(query: str, top_k: int = 4) -> Any:
        if query == "down":
            raise ConnectionError
        return search(query, top_k)

    wrapped = telemetry.wrap(
        failing, {**REWRITE, "breaker": {"failures": 0}}, ModelError("rate_limited")
    )
    wrapped.retrieve(QUERY)
    wrapped.retrieve("")
    with pytest.raises(ConnectionError):
        wrapped.retrieve("down")
    points = telemetry.points()
    found = {
        (it["qtmiddleware.stage"], it["qtmiddleware.reason"])
        for it, _ in points["qtmiddleware.degradations"]
    }
    assert ("transform.rewrite", "rate_limited") in found
    assert ("query", "blank") in found
    requests = {
        it["qtmiddleware.status"]: count for it, count in points["qtmiddleware.request.duration"]
    }
    assert requests == {"degraded": 2, "failed": 1}
    errors = {it["error.type"] for it, _ in points["gen_ai.client.inference.duration"]}
    assert errors == {"rate_limited"}


def test_an_answers_tokens_and_degradations_are_counted_once(telemetry: Telemetry) -> None:
    reply = Reply("Jaco is healthy [1] [9].", input_tokens=30, output_tokens=9)
    answer = telemetry.wrap(plain, ANSWER, client=Billing(reply)).answer(QUERY)
    assert [it.reason for it in answer.degradations] == ["invented"]
    points = telemetry.points()
    assert [value for _, value in points["gen_ai.client.inference.usage.input_tokens"]] == [30]
    assert points["qtmiddleware.degradations"] == [
        ({"qtmiddleware.stage": "citations", "qtmiddleware.reason": "invented"}, 1)
    ]


def test_metrics_have_base_units_and_boundaries_of_the_conventions(telemetry: Telemetry) -> None:
    telemetry.wrap(plain).retrieve(QUERY)
    telemetry.points()
    units = telemetry.units()
    assert units == {row.name: row.unit for row in METRICS if row.name in units}
    assert {row.unit for row in METRICS if row.boundaries} == {"s", "{token}"}
    tokens = {row.boundaries for row in METRICS if row.boundaries and row.unit == "{token}"}
    assert tokens == {
        (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
    }
    for row in METRICS:
        assert row.boundaries == tuple(sorted(row.boundaries))


@given(st.text())
def test_a_label_is_a_word_or_told_as_other(word: str) -> None:
    label = ours._clean_label(word)
    assert label in (word, "_OTHER")
    assert re.fullmatch(r"[A-Za-z0-9_.: -]{1,120}", label)


@given(reason=st.text(), stage=st.text(), kind=st.text())
def test_no_text_makes_a_label_of_its_own(reason: str, stage: str, kind: str) -> None:
    telemetry = Telemetry()
    operation = Operation(1, "search", kind)
    telemetry.observer.on_start(operation)
    telemetry.observer.on_end(Operation(1, "search", kind, outcome="failed", reason=reason))
    ((labels, count),) = telemetry.points()["qtmiddleware.search.duration"]
    assert count == 1
    assert labels["error.type"] in (reason or "_OTHER", "_OTHER")
    assert len(labels["error.type"]) <= 120


# --- content --------------------------------------------------------------------------------------

SAID = (QUERY, "Jaco", "vet", "medical", CITED)


def emitted(telemetry: Telemetry) -> str:
    spans = [
        (it.name, dict(it.attributes or {}), it.events, it.status.description)
        for it in telemetry.spans()
    ]
    return repr(spans) + repr(telemetry.points())


def ask_everything(telemetry: Telemetry) -> None:
    telemetry.wrap(plain, {**REWRITE, "cache": {"enabled": False}}).retrieve(QUERY)
    telemetry.wrap(plain, ANSWER, CITED).answer(QUERY)
    telemetry.wrap(plain, script=ModelError("Does Jaco see a vet?", QUERY)).retrieve(QUERY)

    def raising(query: str, top_k: int = 4) -> Any:
        raise type("Jaco is ill", (Exception,), {})(query)

    with pytest.raises(Exception, match="Jaco"):
        telemetry.wrap(raising).retrieve(QUERY)


@pytest.mark.parametrize("value", [None, "", "false", "no_content", "EVENT_ONLY", "0", "anything"])
def test_no_text_is_emitted_by_default(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CAPTURE_CONTENT, raising=False)
    if value is not None:
        monkeypatch.setenv(CAPTURE_CONTENT, value)
    telemetry = Telemetry()
    ask_everything(telemetry)
    said = emitted(telemetry)
    for text in SAID:
        assert text not in said
    assert not [name for it in telemetry.spans() for name in it.attributes or {} if name in CONTENT]


@pytest.mark.parametrize("value", ["true", "True", "SPAN_ONLY", "span_and_event", " span_only "])
def test_the_usual_variable_puts_content_into_spans_and_never_into_metrics(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE_CONTENT, value)
    telemetry = Telemetry()
    telemetry.wrap(plain, ANSWER, CITED).answer(QUERY)
    chat = telemetry.span("chat small").attributes or {}
    (said,) = json.loads(str(chat[Names.OUTPUT]))
    assert said == {
        "role": "assistant",
        "parts": [{"type": "text", "content": CITED}],
        "finish_reason": "stop",
    }
    assert QUERY in str(chat[Names.INPUT])
    assert json.loads(str(chat[Names.INSTRUCTIONS]))[0]["type"] == "text"
    whole = telemetry.span("retrieval").attributes or {}
    assert whole[Names.QUERY_TEXT] == QUERY
    documents = json.loads(str(whole[Names.DOCUMENTS]))
    assert set(documents[0]) == {"id", "score"}
    for text in SAID:
        assert text not in repr(telemetry.points())


def test_capture_content_overrules_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE_CONTENT, "true")
    telemetry = Telemetry(capture_content=False)
    ask_everything(telemetry)
    assert QUERY not in emitted(telemetry)


@given(st.text(st.characters(categories=None, codec=None)))
def test_any_text_can_be_captured_and_encoded(text: str) -> None:
    operation = Operation(
        1, "model", content=Prompt("rewrite", "1", text, text, (), text), result=Reply(text)
    )
    told = [
        *ours._list_content_attributes(operation),
        *ours._list_content_attributes(Operation(1, "retrieval", content=text)),
    ]
    for _, value in told:
        value.encode("utf-8")


# --- bad days -------------------------------------------------------------------------------------


def test_an_exporter_that_hangs_holds_up_nobody_and_what_it_cannot_take_is_dropped_and_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING", 20)
    exporter = Hanging()
    telemetry = Telemetry(SimpleSpanProcessor(exporter))
    wrapped = telemetry.wrap(plain)
    expected = qtm.QueryMiddleware({}).wrap(plain).retrieve(QUERY).response
    try:
        wrapped.retrieve(QUERY)
        assert exporter.began.wait(50)
        for _ in range(20):
            assert len(wrapped.retrieve(QUERY).response) == len(expected)
            # The metrics do not wait for it.
            assert telemetry.observer._ended.flush(50)
        assert telemetry.observer.dropped > 0
        assert not telemetry.observer.flush(0.01)
        assert (
            len([it for it in caplog.records if "spans are being dropped" in it.getMessage()]) == 1
        )
    finally:
        exporter.released.set()
    assert telemetry.observer.flush(50)


def test_an_exporter_or_processor_that_raises_costs_its_span_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Raising(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            raise OSError("no route to host")

    class RaisingAtTheEnd(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise ValueError

    class RaisingAtTheStart(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise ValueError

    for processor in (SimpleSpanProcessor(Raising()), RaisingAtTheEnd(), RaisingAtTheStart()):
        telemetry = Telemetry(processor)
        wrapped = telemetry.wrap(plain)
        assert [wrapped.retrieve(QUERY).status for _ in range(3)] == ["full"] * 3
        assert telemetry.observer.flush(50)
        assert is_nothing_current()
        assert [count for _, count in telemetry.points()["qtmiddleware.request.duration"]] == [3]


def test_a_sampler_that_drops_a_retrieval_drops_what_it_calls_too() -> None:
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    seen = []

    def fn(query: str, top_k: int = 4) -> Any:
        seen.append(trace.get_current_span().get_span_context())
        return search(query, top_k)

    telemetry.wrap(fn).retrieve(QUERY)
    assert telemetry.spans() == []
    assert [(it.is_valid, it.trace_flags.sampled) for it in seen] == [(True, False)] * 2
    assert len({it.trace_id for it in seen}) == 1
    assert is_nothing_current()


def test_without_a_provider_nothing_is_made_and_nothing_waits() -> None:
    assert type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics.")
    observer = OpenTelemetryObserver()
    wrapped = qtm.QueryMiddleware(
        REWRITE, client=lambda _: json.dumps(REPLIES["rewrite"]), observers=[observer]
    ).wrap(plain)
    wrapped.retrieve(QUERY)
    assert not observer._open
    assert not observer._spans._waiting
    assert not observer._ended._waiting
    assert is_nothing_current()


def test_operations_that_never_end_are_forgotten_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ours, "MAX_OPEN", 5)
    telemetry = Telemetry()
    for number in range(20):
        telemetry.observer.on_start(Operation(number, "answer"))
    assert len(telemetry.observer._open) == 5


def test_the_end_of_an_operation_never_heard_of_does_no_harm(telemetry: Telemetry) -> None:
    telemetry.observer.on_end(
        Operation(1, "search", "original", Operation(2, "retrieval"), outcome="ok")
    )
    assert telemetry.spans() == []


def test_without_the_api_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, ours.__name__)
    with pytest.raises(MissingExtra, match=re.escape('pip install "qtmiddleware[otel]"')):
        importlib.import_module(ours.__name__)


def test_an_api_that_is_too_old_is_told_with_the_version_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qtmiddleware.integrations.version", lambda package: "1.29.0")
    monkeypatch.delitem(sys.modules, ours.__name__)
    with pytest.raises(
        MissingExtra, match=r"opentelemetry-api 1\.30 or newer \(here is 1\.29\.0\)"
    ):
        importlib.import_module(ours.__name__)


def test_every_name_that_is_emitted_stands_in_the_tables() -> None:
    names = {value for name, value in vars(Names).items() if not name.startswith("_")}
    telemetry = Telemetry(capture_content=True, provider_name="openai", data_source_id="guides")
    ask_everything(telemetry)
    titles = {row.title for row in SPANS.values()}
    for it in telemetry.spans():
        assert set(it.attributes or {}) <= names
        assert it.name.split()[0] in titles
    for metric, points in telemetry.points().items():
        assert metric in {row.name for row in METRICS}
        assert {label for labels, _ in points for label in labels} <= names
