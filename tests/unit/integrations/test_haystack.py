"""`QueryTransformRetriever` in Haystack: what it finds, what it tells, what a file holds, and odd things."""

from __future__ import annotations

import asyncio
import copy
import json
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from haystack import Document, Pipeline, component, tracing
from haystack.components.builders import PromptBuilder
from haystack.components.joiners import DocumentJoiner
from haystack.components.writers import DocumentWriter
from haystack.core.errors import (
    DeserializationError,
    SerializationError,
)
from haystack.core.super_component import SuperComponent
from haystack.dataclasses import ChatMessage, ToolCall

import qtmiddleware as qtm
from qtmiddleware.integrations.haystack import SPAN, QueryTransformRetriever
from qtmiddleware.testing import ScriptedModel
from tests.support.haystack_world import (
    QUESTION,
    TEXTS,
    AsyncPipeline,
    CountingRetriever,
    KeepingTracer,
    Replies,
    WordEmbedder,
    asked,
    by_vectors,
    by_words,
    find,
    make_store,
)

WIDE = 50
REWRITE = "Jaco's health concerns"
PATIENT = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}
ALLOWED: dict[str, Any] = (
    {"allowed_modules": ["qtmiddleware", "tests", __name__]} if AsyncPipeline is Pipeline else {}
)


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


def ids(found: Any) -> list[str]:
    documents = found["documents"] if isinstance(found, dict) else found
    return [document.id for document in documents]


def name_type(value: Any) -> str:
    """A test's name, the same in every process, as an object's address is not."""
    return type(value).__name__


def transforming(inner: Any, **options: Any) -> QueryTransformRetriever:
    return QueryTransformRetriever(
        inner, config=PATIENT, client=Replies({"rewrite": REWRITE}), **options
    )


async def call(
    retriever: QueryTransformRetriever, is_async: bool, *args: Any, **named: Any
) -> dict[str, Any]:
    return await retriever.run_async(*args, **named) if is_async else retriever.run(*args, **named)


def put_into_pipeline(retriever: Any, kind: Any = Pipeline) -> Any:
    pipeline = kind()
    pipeline.add_component("retriever", retriever)
    return pipeline


@component
class Whole:
    """Takes no number of documents."""

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, Any]:
        return {"documents": find(query, len(TEXTS))}


# --- what is found --------------------------------------------------------------------------------


def test_the_passage_that_answers_comes_first_where_the_plain_retriever_has_it_third() -> None:
    inner = by_words()
    assert ids(inner.run(query=QUESTION)).index("health") == 2
    assert ids(QueryTransformRetriever(inner).run(QUESTION))[0] == "health"


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_retriever_of_vectors_works_with_the_embedder_of_its_texts(is_async: bool) -> None:
    inner = by_vectors()
    found = await call(
        QueryTransformRetriever(inner, text_embedder=WordEmbedder()), is_async, QUESTION
    )
    assert ids(found)[0] == "health"
    assert len(found["documents"]) == 4


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "make", [by_words, CountingRetriever, lambda: find], ids=["async", "blocking", "function"]
)
async def test_any_retriever_serves_blocking_and_awaiting_calls(make: Any, is_async: bool) -> None:
    found = await call(transforming(make()), is_async, QUESTION)
    assert ids(found)[0] == "health"
    assert [it["kind"] for it in found["variants"]] == ["original", "rewrite"]
    assert (found["status"], found["degradations"]) == ("full", [])


def test_documents_are_the_inner_retrievers_own_with_their_scores_for_the_question() -> None:
    inner = by_words(len(TEXTS))
    plain = {it.id: it for it in inner.run(query=QUESTION)["documents"]}
    before = copy.deepcopy(plain)
    for document in QueryTransformRetriever(inner).run(QUESTION)["documents"]:
        assert document == plain[document.id]
    assert plain == before


def test_what_a_variant_alone_found_has_the_lowest_score_of_the_question() -> None:
    def search(query: str, top_k: int = 4) -> list[Document]:
        if query == REWRITE:
            return [Document(id="new", content="Jaco is ill.", score=99.0)]
        return [Document(id=str(n), content=f"passage {n}", score=9.0 - n) for n in range(4)]

    found = transforming(search, top_k=5).run(QUESTION)["documents"]
    assert {it.id: it.score for it in found} == {"0": 9.0, "1": 8.0, "2": 7.0, "3": 6.0, "new": 6.0}


def test_scores_may_be_ours_which_fall_with_the_order() -> None:
    for inner in (
        by_words(),
        lambda query: [{"id": it.id, "text": it.content, "score": it.score} for it in find(query)],
    ):
        found = QueryTransformRetriever(inner, config={"scores": "fused"}).run(QUESTION)[
            "documents"
        ]
        scores = [it.score for it in found]
        assert scores == sorted(scores, reverse=True)
        assert found[0].id == "health" if len(found) > 4 else True


def test_a_function_read_by_a_shape_of_its_own_is_read_as_it_says() -> None:
    def search(query: str) -> Any:
        return types.SimpleNamespace(rows=[("x", it) for it in find(query, len(TEXTS))])

    wrapped = qtm.QueryMiddleware().wrap(
        search,
        read=lambda response: [it for _, it in response.rows],
        write=lambda response, items: types.SimpleNamespace(rows=[("x", it) for it in items]),
    )
    assert ids(QueryTransformRetriever(wrapped).run(QUESTION))[0] == "health"


# --- how many, and what goes to the retriever -----------------------------------------------------


def test_the_callers_number_goes_before_ours_and_that_before_the_retrievers() -> None:
    assert len(QueryTransformRetriever(CountingRetriever(3)).run(QUESTION)["documents"]) == 3
    ours = QueryTransformRetriever(CountingRetriever(3), top_k=2)
    assert [
        len(ours.run(QUESTION)["documents"]),
        len(ours.run(QUESTION, top_k=5)["documents"]),
    ] == [2, 5]


def test_the_inner_one_is_asked_for_more_so_that_there_is_something_to_weigh() -> None:
    QueryTransformRetriever(CountingRetriever()).run(QUESTION)
    assert asked == [(QUESTION, WIDE)]


@pytest.mark.parametrize(
    "inner", [Whole(), lambda query: find(query, len(TEXTS))], ids=["component", "function"]
)
def test_what_takes_no_number_is_cut_to_it(inner: Any) -> None:
    retriever = QueryTransformRetriever(inner, top_k=2)
    assert [
        len(retriever.run(QUESTION)["documents"]),
        len(retriever.run(QUESTION, top_k=3)["documents"]),
    ] == [2, 3]
    assert len(QueryTransformRetriever(inner).run(QUESTION)["documents"]) == len(TEXTS)
    assert ids(retriever.run(QUESTION)) == ["health", retriever.run(QUESTION)["documents"][1].id]


def test_filters_and_further_arguments_go_to_the_retriever() -> None:
    retriever = QueryTransformRetriever(CountingRetriever())
    assert ids(retriever.run(QUESTION, filters={"id": "cats"})) == ["cats"]
    assert ids(retriever.run(QUESTION, retriever_kwargs={"only": "toys"})) == ["toys"]
    real = QueryTransformRetriever(by_words())
    short = {"field": "meta.n", "operator": "<", "value": 30}
    assert set(ids(real.run(QUESTION, filters=short))) <= {
        id_ for id_, text in TEXTS.items() if len(text) < 30
    }


@pytest.mark.filterwarnings("ignore:Mutating attribute")  # by what joins, before 2.31
def test_a_whole_pipeline_is_a_retriever_as_a_super_component() -> None:
    pipeline = Pipeline()
    pipeline.add_component("words", by_words(50))
    pipeline.add_component("embedder", WordEmbedder())
    pipeline.add_component("vectors", by_vectors(50))
    pipeline.add_component("joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion"))
    pipeline.connect("embedder.embedding", "vectors.query_embedding")
    pipeline.connect("words", "joiner")
    pipeline.connect("vectors", "joiner")
    hybrid = SuperComponent(
        pipeline,
        input_mapping={"query": ["words.query", "embedder.text"]},
        output_mapping={"joiner.documents": "documents"},
    )
    assert ids(QueryTransformRetriever(hybrid, top_k=4).run(QUESTION))[0] == "health"


# --- the model and the conversation ---------------------------------------------------------------

CONVERSATION = [
    ChatMessage.from_system("You are kind."),
    ChatMessage.from_user("Who is Jaco?"),
    ChatMessage.from_assistant(tool_calls=[ToolCall("search", {"query": "Jaco"}, id="1")]),
    ChatMessage.from_tool(
        "passages of a tool", origin=ToolCall("search", {"query": "Jaco"}, id="1")
    ),
    ChatMessage.from_assistant("A dog of nine years."),
]


@pytest.mark.parametrize("is_async", [False, True])
async def test_messages_of_haystack_are_the_conversation(is_async: bool) -> None:
    client = Replies({"standalone": "Is Jaco healthy?", "rewrite": REWRITE})
    retriever = QueryTransformRetriever(CountingRetriever(), config=PATIENT, client=client)
    found = await call(retriever, is_async, "Is he ill?", history=CONVERSATION)
    assert found["degradations"] == []
    said = " ".join(
        text for messages in client.got for message in messages for text in message.texts
    )
    assert "Who is Jaco?" in said
    assert "A dog of nine years." in said
    assert "passages of a tool" not in said


def test_what_a_chat_generator_tells_of_its_tokens_is_counted() -> None:
    trace = transforming(CountingRetriever()).run(QUESTION)["trace"]
    assert (trace["llm_calls"], trace["input_tokens"], trace["output_tokens"]) == (1, 7, 5)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "replies",
    [[], [ChatMessage.from_assistant("")], RuntimeError("down")],
    ids=["none", "blank", "error"],
)
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

    retriever = QueryTransformRetriever(CountingRetriever(), config=PATIENT, client=Broken())
    found = await call(retriever, is_async, QUESTION)
    assert (found["status"], ids(found)[0]) == ("degraded", "health")
    assert found["degradations"][0]["stage"] == "transform.rewrite"
    assert "_ChatModel" not in str(found["degradations"])


def test_what_else_is_a_client_of_the_middleware_is_one_here() -> None:
    found = QueryTransformRetriever(
        by_words(), config=PATIENT, client=ScriptedModel({"rewrite": REWRITE})
    ).run(QUESTION)
    assert [it["kind"] for it in found["variants"]] == ["original", "rewrite"]


# --- in a pipeline --------------------------------------------------------------------------------


def test_it_stands_in_a_pipeline_where_the_retriever_stood() -> None:
    for kind in {Pipeline, AsyncPipeline}:
        pipeline = put_into_pipeline(transforming(by_words()), kind)
        pipeline.add_component(
            "prompt", PromptBuilder("{{ documents[0].content }}", required_variables="*")
        )
        pipeline.connect("retriever.documents", "prompt.documents")
        inputs = {"retriever": {"query": QUESTION, "history": CONVERSATION}}
        outputs = pipeline.run(inputs)
        assert outputs["prompt"]["prompt"] == TEXTS["health"]
        assert set(outputs["retriever"]) == {
            "status",
            "variants",
            "degradations",
            "trace",
            "confidence",
        }
        json.dumps(outputs["retriever"])
        if hasattr(pipeline, "run_async"):
            assert asyncio.run(pipeline.run_async(inputs))["prompt"]["prompt"] == TEXTS["health"]


# --- saved and loaded -----------------------------------------------------------------------------


def reload(retriever: Any) -> Any:
    """The retriever of the pipeline that was loaded from the text another was saved as, and that text."""
    text = put_into_pipeline(retriever).dumps()
    pipeline = Pipeline.loads(text, **ALLOWED)
    assert pipeline.dumps() == text
    return pipeline.get_component("retriever"), text


MAKERS: dict[str, Any] = {
    "by words": lambda: QueryTransformRetriever(by_words(), top_k=3, config="words"),
    "by vectors": lambda: QueryTransformRetriever(
        by_vectors(), text_embedder=WordEmbedder(), config={"scores": "fused"}
    ),
    "function": lambda: QueryTransformRetriever(find, top_k=2),
    "file": lambda: QueryTransformRetriever(
        find, config=Path(__file__).parents[3] / "config/words.config.json"
    ),
    "all": lambda: transforming(by_words(), redact=hide, on_retrieval=note),
}


def hide(text: str) -> str:
    return text.replace("Jaco", "X")


heard: list[qtm.Retrieval] = []


def note(found: qtm.Retrieval) -> None:
    heard.append(found)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_pipeline_that_was_saved_and_loaded_answers_the_same(make: Any) -> None:
    retriever = make()
    loaded, _ = reload(retriever)
    before, after = retriever.run(QUESTION), loaded.run(QUESTION)
    assert before["documents"] == after["documents"]
    assert (before["variants"], before["status"]) == (after["variants"], after["status"])


def test_all_that_is_set_comes_back() -> None:
    loaded, text = reload(MAKERS["all"]())
    assert (loaded.redact, loaded.on_retrieval, loaded.config) == (hide, note, PATIENT)
    assert loaded.client.fields == {"rewrite": REWRITE}
    assert "reranker" not in text
    heard.clear()
    loaded.run(QUESTION)
    assert len(heard) == 1


def test_a_function_that_is_wrapped_already_comes_back_with_its_own_options() -> None:
    loaded, text = reload(QueryTransformRetriever(search_wrapped))
    assert f"{__name__}.search_wrapped" in text
    assert loaded.search is search_wrapped


@qtm.middleware(config={"preprocess": False})
def search_wrapped(query: str, top_k: int = 4) -> list[Document]:
    return find(query, top_k)


@pytest.mark.parametrize(
    "config", [qtm.Config.load("words"), qtm.Config.load("words").settings], ids=name_type
)
def test_settings_of_any_kind_are_saved_as_a_plain_mapping(config: Any) -> None:
    loaded, _ = reload(QueryTransformRetriever(by_words(), config=config))
    assert (
        loaded.search.middleware.settings
        == QueryTransformRetriever(by_words(), config=config).search.middleware.settings
    )


class Holder:
    def search(self, query: str) -> list[Document]:
        return find(query)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retriever", lambda query: find(query)),
        ("retriever", Holder().search),
        ("retriever", partial(find, top_k=3)),
        ("retriever", qtm.Hybrid(find, find)),
        ("client", ScriptedModel("sk-secret")),
        ("client", lambda messages: "sk-secret"),
        ("observers", [types.SimpleNamespace(on_start=print, on_end=print)]),
        ("redact", lambda text: text),
    ],
    ids=["lambda", "method", "partial", "hybrid", "model", "client", "observers", "redact"],
)
def test_what_a_file_cannot_hold_is_named_and_refused(name: str, value: Any) -> None:
    fields: dict[str, Any] = {"retriever": by_words(), name: value}
    with pytest.raises(
        SerializationError, match=f"{name}=.* cannot be saved: a file can hold components"
    ) as caught:
        put_into_pipeline(QueryTransformRetriever(**fields)).dumps()
    assert "sk-secret" not in str(caught.value)
    assert ("set its key in the environment" in str(caught.value)) == (name == "client")


@pytest.mark.skipif(
    AsyncPipeline is not Pipeline, reason="Haystack 2 asks for no modules that are allowed"
)
def test_a_file_runs_no_function_of_a_module_that_is_not_allowed() -> None:
    saved = put_into_pipeline(QueryTransformRetriever(by_words())).to_dict()
    saved["components"]["retriever"]["init_parameters"]["retriever"] = "os.system"
    with pytest.raises(DeserializationError, match="not on the trusted-module allowlist"):
        Pipeline.from_dict(saved, **ALLOWED)


# --- what is told ---------------------------------------------------------------------------------


@pytest.fixture
def tracer() -> Iterator[KeepingTracer]:
    kept = KeepingTracer()
    tracing.enable_tracing(kept)
    yield kept
    tracing.disable_tracing()


@pytest.mark.parametrize("is_async", [False, True])
async def test_every_search_and_the_models_call_are_spans_within_ours(
    tracer: KeepingTracer, is_async: bool
) -> None:
    await call(transforming(by_vectors(), text_embedder=WordEmbedder()), is_async, QUESTION)
    inner = [
        "haystack.chat_generator.run",
        *["haystack.retriever.run"] * 2,
        *["haystack.text_embedder.run"] * 2,
    ]
    assert tracer.tree == sorted([(SPAN, ""), *((name, SPAN) for name in inner)])
    (ours,) = [it for it in tracer.spans if it.name == SPAN]
    assert (ours.tags["qtmiddleware.status"], ours.tags["qtmiddleware.searches"]) == ("full", 2)
    assert ours.tags["qtmiddleware.variants"] == ["original", "rewrite"]


def test_spans_hold_no_text_unless_haystack_is_told_so(
    tracer: KeepingTracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = transforming(by_words(), redact=hide)
    retriever.run(QUESTION)
    assert not any(
        word in str([it.tags for it in tracer.spans]) for word in ("Jaco", "bark", REWRITE)
    )
    monkeypatch.setattr(tracing.tracer, "is_content_tracing_enabled", True)
    tracer.spans.clear()
    retriever.run(QUESTION)
    (ours,) = [it for it in tracer.spans if it.name == SPAN]
    record = ours.tags["qtmiddleware.record"]
    assert record["queries"] == ["Does X have any health concerns?"]
    assert record["retrieval_steps"]["final"][0]["id"] == "health"
    (search, *_) = [it for it in tracer.spans if it.name == "haystack.retriever.run"]
    assert {"query", "top_k"} <= set(search.tags["haystack.component.input"])


# --- odd things -----------------------------------------------------------------------------------


@component
class Queries:
    @component.output_types(documents=list[Document])
    def run(self, queries: list[str]) -> dict[str, Any]:
        return {"documents": []}


@pytest.mark.parametrize(
    ("options", "path", "said"),
    [
        ({"retriever": CountingRetriever}, "retriever", "not the class CountingRetriever"),
        ({"retriever": by_vectors()}, "retriever", "InMemoryEmbeddingRetriever takes query_embedd"),
        ({"retriever": Queries()}, "retriever", "Queries takes queries and returns documents"),
        (
            {"retriever": DocumentWriter(make_store())},
            "retriever",
            "DocumentWriter takes documents",
        ),
        ({"text_embedder": 42}, "text_embedder", "not int"),
        ({"text_embedder": WordEmbedder}, "text_embedder", "not the class WordEmbedder"),
        ({"text_embedder": Queries()}, "text_embedder", "not Queries"),
        ({"text_embedder": WordEmbedder()}, "retriever", "InMemoryBM25Retriever takes query and"),
        (
            {"text_embedder": WordEmbedder(), "retriever": find},
            "text_embedder",
            "a function takes the query as text",
        ),
        ({"client": WordEmbedder()}, "client", "must be a chat generator.*not WordEmbedder"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_component_that_does_not_fit_is_refused(
    options: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(qtm.ConfigError, match=said) as caught:
        QueryTransformRetriever(**{"retriever": by_words(), **options})
    assert caught.value.path == path


@pytest.mark.parametrize("is_async", [False, True])
async def test_warming_up_and_closing_do_so_with_what_is_inside(is_async: bool) -> None:
    @component
    class Closing(CountingRetriever):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    inner = Closing()
    ours = QueryTransformRetriever(inner)
    put_into_pipeline(ours).warm_up()
    assert (inner.warmed, bool(ours.search.middleware.ready())) == (1, True)
    await ours.close_async() if is_async else ours.close()
    assert (inner.closed, bool(ours.search.middleware.ready())) == (1, False)
    assert ids(ours.run(QUESTION))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"config": {"keywordEvidnce": {}}}, "keywordEvidnce is not a setting.*keywordEvidence"),
        ({"shine": 1}, "shine"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"retriever": f"{__name__}.gone"}, "Could not find attribute 'gone'"),
        ({"retriever": {"type": f"{__name__}.Gone", "init_parameters": {}}}, "test_haystack.Gone"),
    ],
    ids=["setting", "parameter", "value", "function", "component"],
)
def test_what_a_file_names_and_cannot_be_loaded_is_told(changed: dict[str, Any], said: str) -> None:
    saved = put_into_pipeline(QueryTransformRetriever(by_words())).to_dict()
    before = copy.deepcopy(saved)
    assert Pipeline.from_dict(saved, **ALLOWED)
    assert saved == before
    saved["components"]["retriever"]["init_parameters"].update(changed)
    with pytest.raises((DeserializationError, ImportError), match=rf"(?s){said}"):
        Pipeline.from_dict(saved, **ALLOWED)


async def test_a_misspelt_input_is_refused() -> None:
    retriever: Any = QueryTransformRetriever(find)
    with pytest.raises(TypeError, match="topk"):
        retriever.retrieve(QUESTION, topk=3)
    with pytest.raises(TypeError, match="topk"):
        await retriever.aretrieve(QUESTION, topk=3)
