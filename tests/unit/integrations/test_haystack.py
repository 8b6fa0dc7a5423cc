"""`QueryTransformRetriever` in Haystack: what it searches, what a file holds, and odd things."""

from __future__ import annotations

import asyncio
import json
import types
from typing import Any

import pytest
from haystack import Pipeline, component
from haystack.components.builders import PromptBuilder
from haystack.components.retrievers import TextEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.core.errors import SerializationError
from haystack.core.super_component import SuperComponent
from haystack.dataclasses import ChatMessage

import qtmiddleware as qtm
from qtmiddleware.integrations.haystack import QueryTransformRetriever
from qtmiddleware.testing import ScriptedModel
from tests.support.haystack_world import (
    QUESTION,
    TEXTS,
    AsyncPipeline,
    CountingRetriever,
    Replies,
    WordEmbedder,
    asked,
    by_vectors,
    by_words,
    find,
    make_store,
)

pytestmark = pytest.mark.thorough

WIDE = 50
REWRITE = "Jaco's health concerns"
PATIENT = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}
ALLOWED: dict[str, Any] = (
    {"allowed_modules": ["qtmiddleware", "tests", __name__]} if AsyncPipeline is Pipeline else {}
)
both_ways = pytest.mark.parametrize("is_async", [False, True])


def ids(found: dict[str, Any]) -> list[str]:
    return [document.id for document in found["documents"]]


def with_embedder(top_k: int = 4) -> TextEmbeddingRetriever:
    return TextEmbeddingRetriever(retriever=by_vectors(top_k), text_embedder=WordEmbedder())


def as_super_component() -> SuperComponent:
    pipeline = Pipeline()
    pipeline.add_component("words", by_words())
    return SuperComponent(
        pipeline,
        input_mapping={"query": ["words.query"]},
        output_mapping={"words.documents": "documents"},
    )


def transforming(inner: Any, **options: Any) -> QueryTransformRetriever:
    client = Replies({"rewrite": REWRITE})
    return QueryTransformRetriever(inner, config=PATIENT, client=client, **options)


async def call(
    retriever: QueryTransformRetriever, is_async: bool, *args: Any, **named: Any
) -> dict[str, Any]:
    return await retriever.run_async(*args, **named) if is_async else retriever.run(*args, **named)


def put_into_pipeline(retriever: Any, kind: Any = Pipeline) -> Any:
    pipeline = kind()
    pipeline.add_component("retriever", retriever)
    return pipeline


# --- what is searched -----------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    "make",
    [by_words, with_embedder, CountingRetriever, as_super_component, lambda: find],
    ids=["words", "vectors", "blocking", "pipeline", "function"],
)
async def test_every_kind_of_retriever_is_searched_with_the_models_variants(
    make: Any, is_async: bool
) -> None:
    found = await call(transforming(make(), top_k=4), is_async, QUESTION)
    assert (ids(found)[0], len(found["documents"])) == ("health", 4)
    assert [it["kind"] for it in found["variants"]] == ["original", "rewrite"]
    assert (found["status"], found["degradations"]) == ("full", [])
    trace = found["trace"]
    assert (trace["llm_calls"], trace["input_tokens"], trace["output_tokens"]) == (1, 7, 5)


def test_the_inner_one_is_asked_for_more_and_cut_to_its_own_number() -> None:
    asked.clear()
    assert len(ids(QueryTransformRetriever(CountingRetriever(3)).run(QUESTION))) == 3
    assert asked == [(QUESTION, WIDE)]
    assert len(ids(QueryTransformRetriever(with_embedder(3)).run(QUESTION, top_k=2))) == 2


def test_filters_and_further_arguments_go_to_the_retriever() -> None:
    retriever = QueryTransformRetriever(CountingRetriever())
    assert ids(retriever.run(QUESTION, filters={"id": "cats"})) == ["cats"]
    assert [it.id for it in retriever.retrieve(QUESTION, only="toys").matches] == ["toys"]
    with pytest.raises(TypeError, match="topk"):
        retriever.retrieve(QUESTION, topk=3)


# --- scores ---------------------------------------------------------------------------------------


# --- the model ------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("replies", [[], RuntimeError("down")], ids=["none", "error"])
async def test_a_chat_generator_that_fails_costs_nothing_but_its_variants(
    replies: Any, is_async: bool
) -> None:
    @component
    class Broken:
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            if isinstance(replies, Exception):
                raise replies
            return {"replies": replies}

    retriever = QueryTransformRetriever(
        CountingRetriever(),
        config=PATIENT,
        client=Broken(),
    )
    found = await call(retriever, is_async, QUESTION)
    assert (found["status"], ids(found)[0]) == ("degraded", "health")
    assert found["degradations"][0]["stage"] == "transform.rewrite"
    assert "_ChatModel" not in str(found["degradations"])


# --- in a pipeline --------------------------------------------------------------------------------


def test_it_stands_in_a_pipeline_where_the_retriever_stood() -> None:
    for kind in {Pipeline, AsyncPipeline}:
        pipeline = put_into_pipeline(transforming(by_words()), kind)
        builder = PromptBuilder("{{ documents[0].content }}", required_variables="*")
        pipeline.add_component("prompt", builder)
        pipeline.connect("retriever.documents", "prompt.documents")
        history = [
            ChatMessage.from_user("Who is Jaco?"),
            ChatMessage.from_assistant("A dog."),
        ]
        inputs = {"retriever": {"query": QUESTION, "history": history}}
        outputs = pipeline.run(inputs)
        assert outputs["prompt"]["prompt"] == TEXTS["health"]
        others = {"status", "variants", "degradations", "trace", "confidence"}
        assert set(outputs["retriever"]) == others
        json.dumps(outputs["retriever"])
        if hasattr(pipeline, "run_async"):
            assert asyncio.run(pipeline.run_async(inputs))["prompt"]["prompt"] == TEXTS["health"]


def test_warming_up_and_closing_do_so_with_what_is_inside() -> None:
    @component
    class Closing(CountingRetriever):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    inner = Closing()
    ours = QueryTransformRetriever(inner)
    put_into_pipeline(ours).warm_up()
    ours.close()
    assert (inner.warmed, inner.closed) == (1, 1)
    assert ids(ours.run(QUESTION))


# --- saved and loaded -----------------------------------------------------------------------------

MAKERS: dict[str, Any] = {
    "by words": lambda: QueryTransformRetriever(by_words(), top_k=3, config="words"),
    "by vectors": lambda: QueryTransformRetriever(with_embedder(), config={"scores": "fused"}),
    "with a model": lambda: transforming(by_words()),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_pipeline_that_was_saved_and_loaded_answers_the_same(make: Any) -> None:
    retriever = make()
    text = put_into_pipeline(retriever).dumps()
    pipeline = Pipeline.loads(text, **ALLOWED)
    assert pipeline.dumps() == text
    loaded = pipeline.get_component("retriever")
    before, after = retriever.run(QUESTION), loaded.run(QUESTION)
    for name in ("documents", "variants", "status"):
        assert before[name] == after[name]
    assert loaded.search.middleware.settings == retriever.search.middleware.settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retriever", find),
        ("client", ScriptedModel("sk-secret")),
        ("observers", [types.SimpleNamespace(on_start=print, on_end=print)]),
    ],
    ids=["function", "model", "observers"],
)
def test_what_a_file_cannot_hold_is_named_and_refused(name: str, value: Any) -> None:
    fields: dict[str, Any] = {"retriever": by_words(), name: value}
    with pytest.raises(SerializationError, match=f"{name}=.* cannot be saved") as caught:
        put_into_pipeline(QueryTransformRetriever(**fields)).dumps()
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CountingRetriever, "not the class CountingRetriever"),
        (by_vectors, "not InMemoryEmbeddingRetriever.*TextEmbeddingRetriever"),
        (lambda: DocumentWriter(make_store()), "not DocumentWriter"),
    ],
    ids=["class", "vectors", "writer"],
)
def test_a_component_that_does_not_fit_is_refused(make: Any, said: str) -> None:
    with pytest.raises(qtm.ConfigError, match=said) as caught:
        QueryTransformRetriever(make())
    assert caught.value.path == "retriever"
