"""`QueryTransformRetriever` in Haystack: what it finds, what it tells, what a file holds, and odd things."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from haystack import Document, Pipeline, component, tracing
from haystack.components.builders import PromptBuilder
from haystack.components.joiners import DocumentJoiner
from haystack.components.retrievers import SentenceWindowRetriever
from haystack.components.writers import DocumentWriter
from haystack.core.errors import (
    DeserializationError,
    PipelineConnectError,
    PipelineRuntimeError,
    SerializationError,
)
from haystack.core.super_component import SuperComponent
from haystack.dataclasses import ChatMessage, ToolCall
from hypothesis import given
from hypothesis import strategies as st

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


@component
class Failing:
    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        raise ZeroDivisionError("theirs")


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


@pytest.mark.parametrize("score", [None, 0.5])
def test_matches_of_another_shape_become_documents(score: float | None) -> None:
    rows = [{"id": 7, "score": score, "text": text, "page": 3} for text in TEXTS.values()]
    found = QueryTransformRetriever(lambda query: {"matches": rows}).run(QUESTION)["documents"]
    assert {it.content for it in found} == set(TEXTS.values())
    assert (found[0].id, found[0].meta, found[0].score) == ("7", {"page": 3}, score)


def test_pairs_of_document_and_score_become_documents_with_that_score() -> None:
    pairs = [(Document(id=id_, content=text), 0.5) for id_, text in TEXTS.items()]
    found = QueryTransformRetriever(lambda query: pairs).run(QUESTION)["documents"]
    assert (found[0].id, found[0].score) == ("health", 0.5)
    assert pairs[0][0].score is None


def test_a_function_read_by_a_shape_of_its_own_is_read_as_it_says() -> None:
    def search(query: str) -> Any:
        return types.SimpleNamespace(rows=[("x", it) for it in find(query, len(TEXTS))])

    wrapped = qtm.QueryMiddleware().wrap(
        search,
        read=lambda response: [it for _, it in response.rows],
        write=lambda response, items: types.SimpleNamespace(rows=[("x", it) for it in items]),
    )
    assert ids(QueryTransformRetriever(wrapped).run(QUESTION))[0] == "health"


PLAIN = CountingRetriever()
OURS = QueryTransformRetriever(PLAIN)


@given(query=st.text(), top_k=st.integers(0, 8))
def test_whatever_is_asked_as_many_documents_come_as_without_us(query: str, top_k: int) -> None:
    assert len(OURS.run(query, top_k=top_k)["documents"]) == len(
        PLAIN.run(query, top_k=top_k)["documents"]
    )


def test_a_match_has_all_its_scores_and_the_document_it_is() -> None:
    match = QueryTransformRetriever(by_words()).retrieve(QUESTION, top_k=2).matches[0]
    assert (match.raw.id, match.raw.score) == (match.id, match.score)
    assert match.fused_score is not None


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


async def test_a_misspelt_option_of_a_call_is_refused_with_the_nearest_one() -> None:
    wrapped: Any = QueryTransformRetriever(lambda query: [])
    with pytest.raises(TypeError, match=r"has no option 'topk'; did you mean top_k\?"):
        wrapped.retrieve("a question", topk=3)
    with pytest.raises(
        TypeError, match=r"it is a setting: put it into qtm_config=\{\"rerank\": \.\.\.\}"
    ):
        await wrapped.aretrieve("a question", rerank=True)


def test_settings_may_be_given_for_a_call() -> None:
    client = Replies({"rewrite": REWRITE})
    retriever = QueryTransformRetriever(CountingRetriever(), config=PATIENT, client=client)
    retriever.run(QUESTION, qtm_config="rules")
    assert client.got == []
    with pytest.raises(qtm.ConfigError, match="nonsense"):
        retriever.run(QUESTION, qtm_config={"nonsense": 1})


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


def test_a_conversation_that_cannot_be_read_is_told_and_costs_nothing() -> None:
    found = QueryTransformRetriever(CountingRetriever()).run(QUESTION, history=[object()])  # type: ignore[list-item]
    assert [(it["stage"], it["reason"]) for it in found["degradations"]] == [
        ("history", "unreadable")
    ]
    assert len(found["documents"]) == 4


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


def test_a_component_that_does_not_chat_is_no_client() -> None:
    with pytest.raises(
        qtm.ConfigError, match=r"client must be a chat generator.*WordEmbedder must take messages"
    ):
        QueryTransformRetriever(by_words(), client=WordEmbedder())


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


def test_it_is_a_text_retriever_by_haystacks_own_order_of_arguments() -> None:
    assert ids(QueryTransformRetriever(CountingRetriever()).run(QUESTION, {"id": "cats"}, 3)) == [
        "cats"
    ]


@pytest.mark.parametrize(
    ("sender", "receiver"), [("prompt", "retriever.filters"), ("prompt", "retriever.queries")]
)
def test_wrong_sockets_are_refused_when_they_are_connected(sender: str, receiver: str) -> None:
    pipeline = put_into_pipeline(QueryTransformRetriever(by_words()))
    pipeline.add_component("prompt", PromptBuilder("{{ question }}", required_variables="*"))
    with pytest.raises(PipelineConnectError, match="retriever"):
        pipeline.connect(sender, receiver)


def test_warming_up_warms_what_is_inside() -> None:
    retriever, embedder = by_vectors(), WordEmbedder()
    ours = QueryTransformRetriever(retriever, text_embedder=embedder)
    ours.run(QUESTION)
    assert embedder.warmed == 1
    put_into_pipeline(ours).warm_up()
    assert embedder.warmed == 2
    assert ours.search.middleware.ready()


async def test_closing_closes_what_is_inside_and_the_next_call_opens_it_again() -> None:
    @component
    class Closing:
        closed = 0

        @component.output_types(documents=list[Document])
        def run(self, query: str) -> dict[str, Any]:
            return {"documents": find(query)}

        def close(self) -> None:
            self.closed += 1

    inner = Closing()
    ours = QueryTransformRetriever(inner)
    ours.warm_up()
    ours.close()
    await ours.close_async()
    assert (inner.closed, bool(ours.search.middleware.ready())) == (2, False)
    await ours.warm_up_async()
    assert ours.search.middleware.ready()
    assert ids(ours.run(QUESTION))[0]


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


async def asking(messages: list[dict[str, str]]) -> str:
    await asyncio.sleep(0)
    return json.dumps({"rewrite": REWRITE})


def test_a_function_that_asks_a_model_is_saved_by_its_name() -> None:
    loaded, _ = reload(QueryTransformRetriever(by_words(), config=PATIENT, client=asking))
    assert [it["kind"] for it in loaded.run(QUESTION)["variants"]] == ["original", "rewrite"]


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


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of ours, which may lose what it holds."""
    module = types.ModuleType("tests.lost_searches")
    exec("def search(query, top_k=4):\n    return []", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_file_that_names_a_function_which_is_gone_says_which(
    lost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = put_into_pipeline(QueryTransformRetriever(lost.search)).dumps()
    assert Pipeline.loads(text, **ALLOWED)
    del lost.search
    gone = (
        r"retriever: the function tests\.lost_searches\.search, named in the file, cannot be loaded"
    )
    with pytest.raises(DeserializationError, match=gone):
        Pipeline.loads(text, **ALLOWED)
    monkeypatch.delitem(sys.modules, lost.__name__)
    with pytest.raises(DeserializationError, match=gone):
        Pipeline.loads(text, **ALLOWED)


def test_a_file_that_names_a_component_which_is_gone_says_which() -> None:
    data = QueryTransformRetriever(by_words()).to_dict()
    data["init_parameters"]["retriever"]["type"] = "haystack.nowhere.GoneRetriever"
    with pytest.raises(
        DeserializationError, match=r"retriever: the component haystack\.nowhere\.GoneRetriever"
    ):
        QueryTransformRetriever.from_dict(data)


class NoComponent:
    """Counts how many are made."""

    made = 0

    def __init__(self) -> None:
        NoComponent.made += 1


def test_a_file_makes_objects_of_components_alone() -> None:
    saved = put_into_pipeline(QueryTransformRetriever(by_words())).to_dict()
    for name in ("retriever", "text_embedder", "client"):
        given = saved["components"]["retriever"]["init_parameters"]
        kept, given[name] = (
            given.get(name),
            {"type": f"{__name__}.NoComponent", "init_parameters": {}},
        )
        with pytest.raises(
            DeserializationError, match=r"NoComponent, named in the file, .* is not a component"
        ):
            Pipeline.from_dict(saved, **ALLOWED)
        given[name] = kept
    assert NoComponent.made == 0


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
        ({"shine": 1}, "has no option shine; the options are retriever, .*newer version"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"retriever": None}, "retriever must be"),
    ],
    ids=["setting", "parameter", "value", "retriever"],
)
def test_what_a_file_of_another_version_says_too_much_is_named(
    changed: dict[str, Any], said: str
) -> None:
    saved = put_into_pipeline(QueryTransformRetriever(by_words())).to_dict()
    saved["components"]["retriever"]["init_parameters"].update(changed)
    with pytest.raises((DeserializationError, qtm.ConfigError), match=rf"(?s){said}"):
        Pipeline.from_dict(saved, **ALLOWED)


def test_loading_leaves_what_was_loaded_as_it_is() -> None:
    data = put_into_pipeline(MAKERS["all"]()).to_dict()
    before = copy.deepcopy(data)
    Pipeline.from_dict(data, **ALLOWED)
    assert data == before


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


def test_in_a_pipeline_ours_is_within_that_of_the_component(tracer: KeepingTracer) -> None:
    put_into_pipeline(QueryTransformRetriever(by_words())).run({"retriever": {"query": QUESTION}})
    assert (SPAN, "haystack.component.run") in tracer.tree


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


def test_a_hook_gets_every_retrieval_and_checking_is_at_hand() -> None:
    kept: list[qtm.Retrieval] = []
    retriever = QueryTransformRetriever(by_words(), on_retrieval=kept.append)
    retriever.run(QUESTION)
    assert [it.status for it in kept] == ["full"]
    assert retriever.search.check(QUESTION).helps


# --- odd things -----------------------------------------------------------------------------------


@component
class Queries:
    @component.output_types(documents=list[Document])
    def run(self, queries: list[str]) -> dict[str, Any]:
        return {"documents": []}


class Undecorated:
    def run(self, query: str) -> dict[str, Any]:
        return {"documents": []}


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (42, "not int"),
        ("a text", "not str"),
        (None, "not NoneType"),
        (make_store(), "not InMemoryDocumentStore"),
        (CountingRetriever, "not the class CountingRetriever"),
        (Undecorated(), "not Undecorated; decorate its class with @component"),
        (by_vectors(), "InMemoryEmbeddingRetriever needs query_embedding"),
        (Queries(), "Queries needs queries"),
        (
            SentenceWindowRetriever(make_store()),
            "SentenceWindowRetriever needs retrieved_documents",
        ),
        (DocumentWriter(make_store()), "DocumentWriter needs documents"),
        (Replies({}), "Replies needs messages"),
    ],
    ids=lambda it: it if isinstance(it, str) else name_type(it),
)
def test_what_is_no_retriever_is_refused_with_what_is_accepted(inner: Any, said: str) -> None:
    with pytest.raises(
        qtm.ConfigError, match="retriever must be a retriever component that takes a query"
    ) as caught:
        QueryTransformRetriever(inner)
    assert said in str(caught.value)
    assert caught.value.path == "retriever"


@pytest.mark.parametrize(
    ("inner", "embedder", "said"),
    [
        (by_vectors(), 42, "text_embedder must be a component that embeds a text.* not int"),
        (by_vectors(), DocumentWriter(make_store()), "text_embedder must be .* not DocumentWriter"),
        (by_vectors(), WordEmbedder, "text_embedder must be .* not the class WordEmbedder"),
        (
            by_words(),
            WordEmbedder(),
            "InMemoryBM25Retriever takes no output of WordEmbedder; leave",
        ),
        (find, WordEmbedder(), "a function takes the query as text; leave text_embedder out"),
    ],
    ids=["number", "no text", "class", "by words", "function"],
)
def test_an_embedder_that_is_none_or_does_not_fit_is_refused(
    inner: Any, embedder: Any, said: str
) -> None:
    with pytest.raises(qtm.ConfigError, match=said) as caught:
        QueryTransformRetriever(inner, text_embedder=embedder)
    assert caught.value.path == "text_embedder"


def test_options_beside_a_function_that_is_wrapped_already_are_refused() -> None:
    assert ids(QueryTransformRetriever(search_wrapped, top_k=2).run(QUESTION))
    with pytest.raises(
        qtm.ConfigError, match="already wrapped; set config, client where you wrap it"
    ):
        QueryTransformRetriever(search_wrapped, config="auto", client=object())


@pytest.mark.parametrize("top_k", [0, -1, "many", True])
def test_an_impossible_number_of_documents_is_refused(top_k: Any) -> None:
    with pytest.raises(qtm.ConfigError, match="top_k must be a whole number of at least 1"):
        QueryTransformRetriever(by_words(), top_k=top_k)


def test_bad_settings_are_refused_as_everywhere() -> None:
    with pytest.raises(qtm.ConfigError, match="nonsense is not a setting"):
        QueryTransformRetriever(by_words(), config={"nonsense": 1})


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_the_inner_retriever_raises_passes_through(is_async: bool) -> None:
    with pytest.raises(ZeroDivisionError, match="theirs"):
        await call(transforming(Failing()), is_async, QUESTION)


def test_a_pipeline_tells_what_the_inner_retriever_raised() -> None:
    with pytest.raises(PipelineRuntimeError, match="theirs") as caught:
        put_into_pipeline(QueryTransformRetriever(Failing())).run(
            {"retriever": {"query": QUESTION}}
        )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("query", ["", "   ", 42, None, {"input": "x"}], ids=name_type)
def test_a_query_that_is_no_question_is_passed_on_as_it_is(query: Any) -> None:
    got: list[Any] = []

    def search(query: Any) -> list[Document]:
        got.append(query)
        return find(QUESTION)

    found = QueryTransformRetriever(search).run(query)
    assert ids(found) == ids(find(QUESTION))
    assert (got, found["status"]) == ([query], "degraded")


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
@pytest.mark.parametrize(
    "returned", [42, "a text", [1, 2], [object()], {"answer": 3}], ids=name_type
)
async def test_what_returns_no_documents_is_named_by_its_type_alone(returned: Any) -> None:
    retriever = QueryTransformRetriever(lambda query: returned)
    with pytest.raises(qtm.ResponseShapeError, match="retriever must return") as caught:
        retriever.run(QUESTION)
    assert "a text" not in str(caught.value)
    with pytest.raises(qtm.ResponseShapeError):
        await retriever.run_async(QUESTION)


@pytest.mark.parametrize("returned", [[], {"matches": []}, {"documents": []}, None], ids=name_type)
def test_nothing_found_is_no_documents(returned: Any) -> None:
    assert QueryTransformRetriever(lambda query: returned).run(QUESTION)["documents"] == []


async def test_an_asynchronous_function_is_awaited_and_refused_where_it_cannot_be() -> None:
    async def search(query: str, top_k: int = 4) -> list[Document]:
        await asyncio.sleep(0)
        return find(query, top_k)

    retriever = QueryTransformRetriever(search, top_k=2)
    assert ids(await retriever.run_async(QUESTION))[0] == "health"
    with pytest.raises(qtm.WrapError, match="run_async"):
        retriever.run(QUESTION)


async def test_cancelling_a_call_cancels_its_search() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @component
    class Slow:
        @component.output_types(documents=list[Document])
        def run(self, query: str) -> dict[str, Any]:
            return {"documents": []}

        @component.output_types(documents=list[Document])
        async def run_async(self, query: str) -> dict[str, Any]:
            began.set()
            try:
                await asyncio.sleep(50)
            finally:
                ended.set()
            return {"documents": []}

    running = asyncio.create_task(QueryTransformRetriever(Slow()).run_async(QUESTION))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


def test_last_year_is_the_one_before_the_clock_s() -> None:
    def clock() -> datetime:
        return datetime(2021, 3, 1, tzinfo=UTC)

    def find_by_year(query: str) -> list[dict[str, Any]]:
        return [
            {"id": f"{year}", "score": 0.9, "text": "A limit.", "metadata": {"year": year}}
            for year in range(2024, 2017, -1)
        ]

    question = "What was the limit last year?"
    found = QueryTransformRetriever(find_by_year, clock=clock).retrieve(question)
    assert found.matches[0].id == "2020"
