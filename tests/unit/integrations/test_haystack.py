"""`QueryTransformRetriever` in Haystack: what it finds, what a file holds, and odd things."""

from __future__ import annotations

import asyncio
import copy
import json
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from haystack import Document, Pipeline, component
from haystack.components.builders import PromptBuilder
from haystack.components.joiners import DocumentJoiner
from haystack.components.retrievers import TextEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.core.errors import DeserializationError, SerializationError
from haystack.core.super_component import SuperComponent
from haystack.dataclasses import ChatMessage, ToolCall

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


def with_embedder(top_k: int = 4) -> TextEmbeddingRetriever:
    return TextEmbeddingRetriever(retriever=by_vectors(top_k), text_embedder=WordEmbedder())


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


# --- what is found --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "make",
    [by_words, with_embedder, CountingRetriever, lambda: find],
    ids=["words", "vectors", "blocking", "function"],
)
async def test_the_passage_that_answers_comes_first_where_the_plain_retriever_has_it_third(
    make: Any, is_async: bool
) -> None:
    assert ids(by_words().run(query=QUESTION)).index("health") == 2
    found = await call(transforming(make()), is_async, QUESTION)
    assert (ids(found)[0], len(found["documents"])) == ("health", 4)
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

    def search_rows(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        found = search(query, top_k)
        return [{"id": it.id, "text": it.content, "score": it.score} for it in found]

    expected = {"0": 9.0, "1": 8.0, "2": 7.0, "3": 6.0, "new": 6.0}
    for inner in (search, search_rows):
        found = transforming(inner, top_k=5).run(QUESTION)["documents"]
        assert {it.id: it.score for it in found} == expected


def test_scores_may_be_ours_which_fall_with_the_order() -> None:
    def find_rows(query: str) -> list[dict[str, Any]]:
        return [{"id": it.id, "text": it.content, "score": it.score} for it in find(query)]

    for inner in (by_words(), find_rows):
        retriever = QueryTransformRetriever(inner, config={"scores": "fused"})
        scores = [it.score for it in retriever.run(QUESTION)["documents"]]
        assert scores == sorted(scores, reverse=True)


def test_a_function_read_by_a_shape_of_its_own_is_read_as_it_says() -> None:
    def search(query: str) -> Any:
        return types.SimpleNamespace(rows=[("x", it) for it in find(query, len(TEXTS))])

    wrapped = qtm.QueryMiddleware().wrap(
        search,
        read=lambda response: [it for _, it in response.rows],
        write=lambda response, items: types.SimpleNamespace(rows=[("x", it) for it in items]),
    )
    assert ids(QueryTransformRetriever(wrapped).run(QUESTION))[0] == "health"


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_documents_without_a_text_come_as_they_are() -> None:
    pictures = [Document(id=str(n), meta={"file": f"{n}.png"}, score=0.5) for n in range(3)]
    assert QueryTransformRetriever(lambda query: pictures).run(QUESTION)["documents"] == pictures


# --- how many, and what goes to the retriever -----------------------------------------------------


def test_the_callers_number_goes_before_ours_and_that_before_the_retrievers() -> None:
    for make in (CountingRetriever, with_embedder):
        assert len(QueryTransformRetriever(make(3)).run(QUESTION)["documents"]) == 3
        ours = QueryTransformRetriever(make(3), top_k=2)
        found = ours.run(QUESTION), ours.run(QUESTION, top_k=5)
        assert [len(it["documents"]) for it in found] == [2, 5]


def test_the_inner_one_is_asked_for_more_so_that_there_is_something_to_weigh() -> None:
    QueryTransformRetriever(CountingRetriever()).run(QUESTION)
    assert asked == [(QUESTION, WIDE)]


def test_a_component_that_takes_no_number_is_cut_to_it() -> None:
    @component
    class Whole:
        @component.output_types(documents=list[Document])
        def run(self, query: str) -> dict[str, Any]:
            return {"documents": find(query, len(TEXTS))}

    assert len(QueryTransformRetriever(Whole()).run(QUESTION)["documents"]) == len(TEXTS)
    assert len(QueryTransformRetriever(Whole(), top_k=2).run(QUESTION)["documents"]) == 2


def test_filters_and_further_arguments_go_to_the_retriever() -> None:
    retriever = QueryTransformRetriever(CountingRetriever())
    assert ids(retriever.run(QUESTION, filters={"id": "cats"})) == ["cats"]
    assert ids(retriever.run(QUESTION, retriever_kwargs={"only": "toys"})) == ["toys"]
    assert [it.id for it in retriever.retrieve(QUESTION, filters={"id": "cats"}).matches] == [
        "cats"
    ]


@pytest.mark.filterwarnings("ignore:Mutating attribute")  # by what joins, before 2.31
def test_a_whole_pipeline_is_a_retriever_as_a_super_component() -> None:
    pipeline = Pipeline()
    pipeline.add_component("words", by_words(50))
    pipeline.add_component("vectors", with_embedder(50))
    pipeline.add_component("joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion"))
    pipeline.connect("words", "joiner")
    pipeline.connect("vectors", "joiner")
    hybrid = SuperComponent(
        pipeline,
        input_mapping={"query": ["words.query", "vectors.query"]},
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
async def test_messages_of_haystack_are_the_conversation_and_tokens_are_counted(
    is_async: bool,
) -> None:
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
    trace = found["trace"]
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
        others = {"status", "variants", "degradations", "trace", "confidence"}
        assert set(outputs["retriever"]) == others
        json.dumps(outputs["retriever"])
        if hasattr(pipeline, "run_async"):
            assert asyncio.run(pipeline.run_async(inputs))["prompt"]["prompt"] == TEXTS["health"]


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


# --- saved and loaded -----------------------------------------------------------------------------


def reload(retriever: Any) -> Any:
    """The retriever of the pipeline that was loaded from the text another was saved as, and that text."""
    text = put_into_pipeline(retriever).dumps()
    pipeline = Pipeline.loads(text, **ALLOWED)
    assert pipeline.dumps() == text
    return pipeline.get_component("retriever"), text


def note(found: qtm.Retrieval) -> None:
    heard.append(found)


heard: list[qtm.Retrieval] = []
FILE = Path(__file__).parents[3] / "config/words.config.json"
MAKERS: dict[str, Any] = {
    "by words": lambda: QueryTransformRetriever(by_words(), top_k=3, config="words"),
    "by vectors": lambda: QueryTransformRetriever(with_embedder(), config={"scores": "fused"}),
    "function": lambda: QueryTransformRetriever(find, top_k=2, config=qtm.Config.load("words")),
    "file": lambda: QueryTransformRetriever(find, config=FILE),
    "all": lambda: transforming(by_words(), on_retrieval=note),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_pipeline_that_was_saved_and_loaded_answers_the_same(make: Any) -> None:
    retriever = make()
    loaded, _ = reload(retriever)
    before, after = retriever.run(QUESTION), loaded.run(QUESTION)
    assert before["documents"] == after["documents"]
    assert (before["variants"], before["status"]) == (after["variants"], after["status"])
    assert loaded.search.middleware.settings == retriever.search.middleware.settings


def test_all_that_is_set_comes_back() -> None:
    loaded, text = reload(MAKERS["all"]())
    assert loaded.options["client"].fields == {"rewrite": REWRITE}
    assert "reranker" not in text
    heard.clear()
    loaded.run(QUESTION)
    assert len(heard) == 1


@qtm.middleware(config={"preprocess": False})
def search_wrapped(query: str, top_k: int = 4) -> list[Document]:
    return find(query, top_k)


def test_a_function_that_is_wrapped_already_comes_back_with_its_own_options() -> None:
    loaded, text = reload(QueryTransformRetriever(search_wrapped))
    assert f"{__name__}.search_wrapped" in text
    assert loaded.search is search_wrapped


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retriever", lambda query: find(query)),
        ("retriever", partial(find, top_k=3)),
        ("retriever", qtm.Hybrid(find, find)),
        ("retriever", qtm.QueryMiddleware().wrap(find)),
        ("client", ScriptedModel("sk-secret")),
        ("observers", [types.SimpleNamespace(on_start=print, on_end=print)]),
    ],
    ids=["lambda", "partial", "hybrid", "wrapped elsewhere", "model", "observers"],
)
def test_what_a_file_cannot_hold_is_named_and_refused(name: str, value: Any) -> None:
    fields: dict[str, Any] = {"retriever": by_words(), name: value}
    with pytest.raises(SerializationError, match=f"{name}=.* cannot be saved") as caught:
        put_into_pipeline(QueryTransformRetriever(**fields)).dumps()
    assert "sk-secret" not in str(caught.value)


@pytest.mark.skipif(
    AsyncPipeline is not Pipeline, reason="Haystack 2 asks for no modules that are allowed"
)
def test_a_file_runs_no_function_of_a_module_that_is_not_allowed() -> None:
    saved = put_into_pipeline(QueryTransformRetriever(by_words())).to_dict()
    saved["components"]["retriever"]["init_parameters"]["retriever"] = "os.system"
    with pytest.raises(DeserializationError, match="not on the trusted-module allowlist"):
        Pipeline.from_dict(saved, **ALLOWED)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"config": {"keywordEvidnce": {}}}, "keywordEvidnce is not a setting.*keywordEvidence"),
        ({"shine": 1}, "shine"),
        ({"retriever": f"{__name__}.gone"}, "Could not find attribute 'gone'"),
    ],
    ids=["setting", "parameter", "function"],
)
def test_what_a_file_names_and_cannot_be_loaded_is_told(changed: dict[str, Any], said: str) -> None:
    saved = put_into_pipeline(QueryTransformRetriever(by_words())).to_dict()
    saved["components"]["retriever"]["init_parameters"].update(changed)
    with pytest.raises(DeserializationError, match=rf"(?s){said}"):
        Pipeline.from_dict(saved, **ALLOWED)


# --- odd things -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retriever", "said"),
    [
        (CountingRetriever, "not the class CountingRetriever"),
        (by_vectors(), "InMemoryEmbeddingRetriever takes query_embedd.*TextEmbeddingRetriever"),
        (DocumentWriter(make_store()), "DocumentWriter takes documents"),
    ],
    ids=["class", "vectors", "writer"],
)
def test_a_component_that_does_not_fit_is_refused(retriever: Any, said: str) -> None:
    with pytest.raises(qtm.ConfigError, match=said) as caught:
        QueryTransformRetriever(retriever)
    assert caught.value.path == "retriever"


def test_a_misspelt_input_is_refused() -> None:
    for inner in (find, by_words()):
        with pytest.raises(TypeError, match="topk"):
            QueryTransformRetriever(inner).retrieve(QUESTION, topk=3)
