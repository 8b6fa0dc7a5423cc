"""The retriever and the postprocessor for LlamaIndex: what they find and tell, and what they make of odd things."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.llms import ChatMessage, MessageRole, MockLLM, TextBlock
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import RetrieverTool
from pydantic import ValidationError

import qtmiddleware as qtm
from qtmiddleware.integrations.llamaindex import (
    KeywordEvidencePostprocessor,
    QueryTransformRetriever,
)
from qtmiddleware.testing import ScriptedModel
from tests.support.langchain_world import QUESTION, TEXTS
from tests.support.llamaindex_world import (
    CountingStore,
    Replies,
    embed,
    listening,
    make_index,
    scored,
)

WIDE = 50
REWRITE = "Is Jaco, the dog, ill?"
PATIENT = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}
INDEX = make_index()
NODES = scored()


def ids(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node_id for node in nodes]


def name_type(value: Any) -> str:
    """A test's name, the same in every process, as an object's address is not."""
    return type(value).__name__


def transforming(inner: Any, **options: Any) -> QueryTransformRetriever:
    return QueryTransformRetriever(
        inner, config=PATIENT, client=ScriptedModel({"rewrite": REWRITE}), **options
    )


class Plain(BaseRetriever):
    """Takes no number of nodes, and knows no awaiting."""

    def __init__(self, nodes: list[NodeWithScore] | None = None) -> None:
        self.nodes = NODES if nodes is None else nodes
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.nodes


async def found_by(retriever: BaseRetriever, query: Any, is_async: bool) -> list[NodeWithScore]:
    return await retriever.aretrieve(query) if is_async else retriever.retrieve(query)


both_ways = pytest.mark.parametrize("is_async", [False, True], ids=["retrieve", "aretrieve"])


# --- what is found --------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("query", [QUESTION, QueryBundle(QUESTION)], ids=name_type)
async def test_the_passage_that_answers_comes_first_where_the_plain_retriever_has_it_third(
    query: Any, is_async: bool
) -> None:
    plain = INDEX.as_retriever(similarity_top_k=4)
    assert ids(plain.retrieve(query)).index("health") == 2
    assert ids(await found_by(QueryTransformRetriever(plain), query, is_async))[0] == "health"
    assert (
        ids(await found_by(QueryTransformRetriever(INDEX, similarity_top_k=4), query, is_async))[0]
        == "health"
    )


def test_nodes_are_the_inner_retrievers_own_with_their_scores_and_stay_as_they_are() -> None:
    before = copy.deepcopy(NODES)
    for inner in (Plain(), lambda query: NODES):
        found = QueryTransformRetriever(inner).retrieve(QUESTION)
        assert sorted(map(id, found)) == sorted(map(id, NODES))
    assert before == NODES


@pytest.mark.parametrize("mode", ["node", "pair", "row"])
def test_what_a_function_returns_of_another_shape_becomes_nodes(mode: str) -> None:
    shapes = {
        "node": [it.node for it in NODES],
        "pair": [(it.node, it.score) for it in NODES],
        "row": {
            "matches": [
                {"id": it.node_id, "score": it.score, "text": it.text, "n": 1} for it in NODES
            ]
        },
    }
    found = QueryTransformRetriever(lambda query: shapes[mode], similarity_top_k=14).retrieve(
        QUESTION
    )
    assert (found[0].node_id, found[0].metadata, found[0].text) == (
        "health",
        {"n": 1},
        TEXTS["health"],
    )
    assert found[0].score == (None if mode == "node" else NODES[1].score)
    own = {id(it.node) for it in NODES}
    assert all(id(it.node) in own for it in found) == (mode != "row")


@both_ways
async def test_a_node_that_only_a_variant_found_is_the_inner_ones_with_the_lowest_score(
    is_async: bool,
) -> None:
    class ByText(Plain):
        similarity_top_k = 4

        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return self.nodes if query_bundle.query_str == REWRITE else self.nodes[:2]

    found = await found_by(transforming(ByText()), QUESTION, is_async)
    own = {id(it.node) for it in NODES}
    assert [id(it.node) in own for it in found] == [True] * 4
    assert sorted(it.score or 0.0 for it in found)[:3] == [NODES[1].score] * 3
    assert [it.score for it in NODES] == [it.score for it in scored()]


def test_a_similarity_cutoff_behind_it_sees_the_stores_own_scores() -> None:
    engine = RetrieverQueryEngine.from_args(
        QueryTransformRetriever(INDEX, similarity_top_k=4),
        llm=MockLLM(),
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.3)],
    )
    assert ids(engine.query(QUESTION).source_nodes) == ["health", "vet", "toys"]


# --- how many -------------------------------------------------------------------------------------


def test_the_calls_number_goes_before_the_retrievers_and_that_before_the_inner_ones() -> None:
    inner = INDEX.as_retriever(similarity_top_k=3)
    assert len(QueryTransformRetriever(inner).retrieve(QUESTION)) == 3
    ours = QueryTransformRetriever(inner, similarity_top_k=2)
    assert [len(ours.retrieve(QUESTION)), len(ours.find(QUESTION, similarity_top_k=5).matches)] == [
        2,
        5,
    ]
    ours.similarity_top_k = 1
    assert len(ours.retrieve(QUESTION)) == 1
    ours.similarity_top_k = None
    inner.similarity_top_k = 4
    assert len(ours.retrieve(QUESTION)) == 4


@both_ways
async def test_the_inner_one_is_asked_for_more_and_keeps_its_own_number(is_async: bool) -> None:
    store = CountingStore()
    inner = make_index(store).as_retriever(similarity_top_k=3)
    assert len(await found_by(QueryTransformRetriever(inner), QUESTION, is_async)) == 3
    assert (store.asked, inner.similarity_top_k) == ([(QUESTION, WIDE)], 3)


def test_one_that_looks_for_variety_is_not_asked_for_more() -> None:
    store = CountingStore()
    inner = make_index(store).as_retriever(vector_store_query_mode="mmr", similarity_top_k=3)
    assert len(QueryTransformRetriever(inner).retrieve(QUESTION)) == 3
    assert store.asked == [(QUESTION, 3)]


def test_one_that_counts_by_more_than_one_number_is_taken_as_it_is() -> None:
    store = CountingStore()
    inner = make_index(store).as_retriever(similarity_top_k=6, sparse_top_k=7)
    found = QueryTransformRetriever(inner).retrieve(QUESTION)
    assert (ids(found)[0], store.asked) == ("health", [(QUESTION, 6)])


def test_objects_behind_the_nodes_are_asked_as_often_as_without_us() -> None:
    asked: list[str] = []

    class Child(Plain):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            asked.append(query_bundle.query_str)
            return super()._retrieve(query_bundle)

    objects = [
        IndexNode(text=text, index_id=id_, obj=Child(NODES[:3])) for id_, text in TEXTS.items()
    ]
    store = CountingStore()
    inner = make_index(store, objects=objects).as_retriever(similarity_top_k=4)
    plain = inner.retrieve(QUESTION)
    before = len(asked)
    found = QueryTransformRetriever(inner).retrieve(QUESTION)
    assert sorted(ids(found)) == sorted(ids(plain))
    assert len(asked) == 2 * before
    assert {count for _, count in store.asked} == {4}


# --- a bundle that brings its own vectors ---------------------------------------------------------


@both_ways
async def test_a_bundles_own_vector_is_searched_and_variants_have_theirs(is_async: bool) -> None:
    store = CountingStore()
    bundle = QueryBundle(QUESTION, embedding=embed("dogs bark"))
    await found_by(transforming(make_index(store)), bundle, is_async)
    assert sorted(map(str, store.vectors)) == sorted(map(str, [embed("dogs bark"), embed(REWRITE)]))
    assert bundle == QueryBundle(QUESTION, embedding=embed("dogs bark"))


# --- the conversation -----------------------------------------------------------------------------

CONVERSATION = [
    ChatMessage("You are kind.", role=MessageRole.SYSTEM),
    ChatMessage(role=MessageRole.USER, blocks=[TextBlock(text="Who is Jaco?")]),
    ChatMessage("passages of a tool", role=MessageRole.TOOL),
    ChatMessage("A dog of nine years.", role=MessageRole.ASSISTANT),
]


def as_memory() -> ChatMemoryBuffer:
    return ChatMemoryBuffer.from_defaults(CONVERSATION, token_limit=1_000)


@both_ways
@pytest.mark.parametrize("given_as", ["messages", "memory", "a call's memory"])
async def test_messages_and_memories_of_llamaindex_are_the_conversation(
    given_as: str, is_async: bool
) -> None:
    model = ScriptedModel({"standalone": "Is Jaco healthy?", "rewrite": REWRITE})
    retriever = QueryTransformRetriever(INDEX, config=PATIENT, client=model)
    history = as_memory() if "memory" in given_as else CONVERSATION
    if "call" in given_as:
        options: Any = {"history": history}
        call = (
            retriever.afind("Is he ill?", **options)
            if is_async
            else retriever.find("Is he ill?", **options)
        )
    else:
        ours = retriever.with_history(history)
        call = ours.afind("Is he ill?") if is_async else ours.find("Is he ill?")
    found = await call if isinstance(call, asyncio.Future) or asyncio.iscoroutine(call) else call
    assert found.degradations == ()
    asked = str(
        [prompt.history for prompt in model.prompts] + [prompt.user for prompt in model.prompts]
    )
    assert "Who is Jaco?" in asked
    assert "A dog of nine years." in asked
    assert "passages of a tool" not in asked
    assert retriever.history is None


@both_ways
async def test_a_memory_that_cannot_be_read_is_told_and_costs_nothing(is_async: bool) -> None:
    class Broken(ChatMemoryBuffer):
        def get_all(self) -> list[ChatMessage]:
            raise ConnectionError("down")

        async def aget_all(self) -> list[ChatMessage]:
            raise ConnectionError("down")

    retriever = QueryTransformRetriever(
        INDEX, similarity_top_k=4, history=Broken.from_defaults(token_limit=100)
    )
    found = await retriever.afind(QUESTION) if is_async else retriever.find(QUESTION)
    assert [(it.stage, it.reason) for it in found.degradations] == [("history", "unreadable")]
    assert len(found.matches) == 4


# --- what is told ---------------------------------------------------------------------------------


@both_ways
async def test_every_search_and_the_models_call_are_spans_within_ours(is_async: bool) -> None:
    model = Replies(reply=json.dumps({"rewrite": REWRITE}))
    retriever = QueryTransformRetriever(INDEX, config=PATIENT, client=model)
    with listening() as spans:
        await found_by(retriever, QUESTION, is_async)
    name = "aretrieve" if is_async else "retrieve"
    assert spans.tree[0] == (f"QueryTransformRetriever.{name}", "")
    inner = [it for it, parent in spans.tree[1:] if parent.startswith("QueryTransformRetriever.")]
    assert inner.count(f"VectorIndexRetriever.{name}") == 2
    assert sum(it.startswith("Replies.") for it in inner) == 1


@both_ways
async def test_handlers_of_the_inner_retrievers_callback_manager_hear_of_ours(
    is_async: bool,
) -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    inner = make_index(callback_manager=CallbackManager([handler])).as_retriever()
    await found_by(QueryTransformRetriever(inner), QUESTION, is_async)
    began = [it[0] for it in handler.get_event_pairs(CBEventType.RETRIEVE)]
    assert len(began) == 2
    own = CallbackManager([])
    assert QueryTransformRetriever(inner, callback_manager=own).callback_manager is own


# --- in LlamaIndex --------------------------------------------------------------------------------


async def test_it_works_in_a_query_engine() -> None:
    engine = RetrieverQueryEngine.from_args(transforming(INDEX, similarity_top_k=3), llm=MockLLM())
    assert ids(engine.query(QUESTION).source_nodes)[0] == "health"
    assert ids((await engine.aquery(QUESTION)).source_nodes)[0] == "health"
    assert TEXTS["health"] in str(engine.query(QUESTION))


async def test_in_a_chat_engine_that_does_not_condense_the_memory_makes_a_question_stand_alone() -> (
    None
):
    memory, store = as_memory(), CountingStore()
    model = ScriptedModel({"standalone": "Is Jaco healthy?", "rewrite": REWRITE})
    retriever = QueryTransformRetriever(
        make_index(store), config=PATIENT, client=model, history=memory
    )
    engine = ContextChatEngine.from_defaults(retriever, llm=MockLLM(), memory=memory)
    assert engine.chat("Is he?").source_nodes
    assert (await engine.achat("And now?")).source_nodes
    assert "Is Jaco healthy?" in {text for text, _ in store.asked}
    assert "Is he?" in [it.content for it in model.prompts[-1].history]


async def test_it_works_as_a_tool() -> None:
    tool = RetrieverTool.from_defaults(
        transforming(INDEX, similarity_top_k=1), name="search", description="Searches."
    )
    assert TEXTS["health"] in str(tool.call(QUESTION))
    assert TEXTS["health"] in str(await tool.acall(QUESTION))


async def test_a_blocking_retriever_does_not_hold_up_the_loop() -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Plain):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(20)
            return self.nodes

    call = asyncio.create_task(QueryTransformRetriever(Slow()).aretrieve(QUESTION))
    await asyncio.sleep(0)
    release.set()
    assert ids(await call)[0] == "health"


# --- odd things -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_nodes_without_a_text_come_as_they_are() -> None:
    pictures = [
        NodeWithScore(node=ImageNode(image_path=f"{n}.png"), score=0.5 - n / 10) for n in range(3)
    ]
    assert QueryTransformRetriever(Plain(pictures)).retrieve(QUESTION) == pictures


# --- the postprocessor ----------------------------------------------------------------------------


def test_nodes_that_hold_the_keywords_come_first_as_the_objects_they_are() -> None:
    nodes = INDEX.as_retriever(similarity_top_k=14).retrieve(QUESTION)
    before = copy.deepcopy(nodes)
    found = KeywordEvidencePostprocessor().postprocess_nodes(nodes, query_str=QUESTION)
    assert (ids(nodes).index("health"), ids(found)[0]) == (2, "health")
    assert Counter(map(id, found)) == Counter(map(id, nodes))
    assert nodes == before
    assert (
        ids(KeywordEvidencePostprocessor(top_n=2).postprocess_nodes(nodes, QueryBundle(QUESTION)))
        == ids(found)[:2]
    )


async def test_it_orders_as_the_rules_tier_does_in_an_engine_too() -> None:
    ours = ids(QueryTransformRetriever(INDEX, similarity_top_k=4).retrieve(QUESTION))
    engine = INDEX.as_query_engine(
        llm=MockLLM(),
        similarity_top_k=50,
        node_postprocessors=[KeywordEvidencePostprocessor(top_n=4)],
    )
    assert ids(engine.query(QUESTION).source_nodes) == ours
    assert ids((await engine.aquery(QUESTION)).source_nodes) == ours


text_nodes = st.builds(TextNode, text=st.text(max_size=40) | st.sampled_from(list(TEXTS.values())))
any_nodes = st.builds(NodeWithScore, node=text_nodes, score=st.none() | st.floats(-2, 2))


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
@given(nodes=st.lists(any_nodes, max_size=70), query=st.text() | st.just(QUESTION), data=st.data())
def test_whatever_the_nodes_none_is_lost(
    nodes: list[NodeWithScore], query: str, data: st.DataObject
) -> None:
    nodes += data.draw(st.lists(st.sampled_from(nodes), max_size=3)) if nodes else []
    found = KeywordEvidencePostprocessor().postprocess_nodes(nodes, query_str=query)
    assert Counter(map(id, found)) == Counter(map(id, nodes))


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_without_a_question_or_a_text_nodes_stay_as_they_are() -> None:
    processor = KeywordEvidencePostprocessor()
    pictures = [NodeWithScore(node=ImageNode(image_path=f"{n}.png"), score=0.5) for n in range(5)]
    assert processor.postprocess_nodes(NODES) == NODES
    assert processor.postprocess_nodes(NODES, query_str=" ") == NODES
    assert processor.postprocess_nodes([], query_str=QUESTION) == []
    assert processor.postprocess_nodes(pictures, query_str=QUESTION) == pictures


def test_a_model_is_never_asked_whatever_the_settings() -> None:
    processor = KeywordEvidencePostprocessor(config="balanced")
    assert ids(processor.postprocess_nodes(NODES, query_str=QUESTION))[0] == "health"


def test_it_is_saved_and_pickled_as_its_fields() -> None:
    processor = KeywordEvidencePostprocessor(top_n=3, config={"keywordEvidence": {"weight": 0.2}})
    saved = KeywordEvidencePostprocessor.from_dict(json.loads(processor.to_json()))
    for again in (saved, pickle.loads(pickle.dumps(processor)), copy.deepcopy(processor)):
        assert (again.top_n, again.config) == (3, processor.config)
        assert len(again.postprocess_nodes(NODES, query_str=QUESTION)) == 3
    assert processor.class_name() == "KeywordEvidencePostprocessor"


def test_fields_of_it_that_are_unknown_or_impossible_are_refused() -> None:
    for fields in ({"top_n": 0}, {"top_k": 3}):
        with pytest.raises(ValidationError, match=next(iter(fields))):
            KeywordEvidencePostprocessor(**fields)
    with pytest.raises(qtm.ConfigError, match="nonsense is not a setting"):
        KeywordEvidencePostprocessor(config={"nonsense": 1})
