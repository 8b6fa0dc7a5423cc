"""The retriever and the postprocessor for LlamaIndex: what they find and tell, and what they make of odd things."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, QueryBundle

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
PICTURES = [
    NodeWithScore(
        node=ImageNode(image_path=f"{n}.png"),
        score=0.5,
    )
    for n in range(3)
]
both_ways = pytest.mark.parametrize(
    "is_async",
    [False, True],
    ids=["retrieve", "aretrieve"],
)


def ids(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node_id for node in nodes]


def transforming(inner: Any, **options: Any) -> QueryTransformRetriever:
    model = ScriptedModel({"standalone": "Is Jaco healthy?", "rewrite": REWRITE})
    return QueryTransformRetriever(
        inner,
        config=PATIENT,
        **{"client": model, **options},
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


# --- what is found --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["scored", "node", "pair", "row"])
def test_nodes_and_scores_are_the_functions_own(mode: str) -> None:
    rows = [
        {
            "id": it.node_id,
            "score": it.score,
            "text": it.text,
            "n": 1,
        }
        for it in NODES
    ]
    shapes: dict[str, Any] = {
        "scored": NODES,
        "node": [it.node for it in NODES],
        "pair": [(it.node, it.score) for it in NODES],
        "row": {"matches": rows},
    }
    before = copy.deepcopy(NODES)
    first, *_ = found = QueryTransformRetriever(lambda query: shapes[mode]).retrieve(QUESTION)
    assert (first.node_id, first.metadata, first.text) == ("health", {"n": 1}, TEXTS["health"])
    assert first.score == (None if mode == "node" else NODES[1].score)
    assert all(any(it.node is own.node for own in NODES) for it in found) == (mode != "row")
    assert before == NODES


@both_ways
async def test_a_node_that_only_a_variant_found_is_the_inner_ones_with_the_lowest_score(
    is_async: bool,
) -> None:
    class ByText(Plain):
        similarity_top_k = 4

        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return self.nodes if query_bundle.query_str == REWRITE else self.nodes[:2]

    found = await found_by(transforming(ByText()), QUESTION, is_async)
    assert all(any(it.node is own.node for own in NODES) for it in found)
    assert sorted(it.score or 0.0 for it in found)[:3] == [NODES[1].score] * 3
    assert [it.score for it in NODES] == [it.score for it in scored()]


# --- how many -------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    ("options", "asked"),
    [({}, WIDE), ({"vector_store_query_mode": "mmr"}, 3), ({"sparse_top_k": 7}, 3)],
    ids=["usual", "variety", "two numbers"],
)
async def test_the_inner_one_is_asked_for_more_where_that_only_adds_nodes(
    options: Any, asked: int, is_async: bool
) -> None:
    store = CountingStore()
    inner = make_index(store).as_retriever(similarity_top_k=3, **options)
    assert len(await found_by(QueryTransformRetriever(inner), QUESTION, is_async)) == 3
    assert (store.asked, inner.similarity_top_k) == ([(QUESTION, asked)], 3)


def test_objects_behind_the_nodes_are_asked_as_often_as_without_us() -> None:
    asked: list[str] = []

    class Child(Plain):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            asked.append(query_bundle.query_str)
            return super()._retrieve(query_bundle)

    objects = [
        IndexNode(
            text=text,
            index_id=id_,
            obj=Child(NODES[:3]),
        )
        for id_, text in TEXTS.items()
    ]
    inner = make_index(objects=objects).as_retriever(similarity_top_k=4)
    plain = inner.retrieve(QUESTION)
    before = len(asked)
    found = QueryTransformRetriever(inner).retrieve(QUESTION)
    assert sorted(ids(found)) == sorted(ids(plain))
    assert len(asked) == 2 * before


@both_ways
async def test_a_bundles_own_vector_is_searched_and_variants_have_theirs(is_async: bool) -> None:
    store = CountingStore()
    bundle = QueryBundle(QUESTION, embedding=embed("dogs bark"))
    await found_by(transforming(make_index(store)), bundle, is_async)
    assert sorted(map(str, store.vectors)) == sorted(
        map(
            str,
            [embed("dogs bark"), embed(REWRITE)],
        )
    )
    assert bundle == QueryBundle(QUESTION, embedding=embed("dogs bark"))


# --- the conversation -----------------------------------------------------------------------------


class Broken(ChatMemoryBuffer):
    def get_all(self) -> list[ChatMessage]:
        raise ConnectionError("down")

    async def aget_all(self) -> list[ChatMessage]:
        raise ConnectionError("down")


@both_ways
@pytest.mark.parametrize("is_broken", [False, True], ids=["memory", "broken"])
@pytest.mark.parametrize("is_calls", [False, True], ids=["retriever's", "call's"])
async def test_a_memory_is_the_conversation_and_one_that_cannot_be_read_is_told(
    is_calls: bool, is_broken: bool, is_async: bool
) -> None:
    kind = Broken if is_broken else ChatMemoryBuffer
    memory = kind.from_defaults([ChatMessage("Who is Jaco?")], token_limit=1_000)
    model = ScriptedModel({"standalone": "Is Jaco healthy?", "rewrite": REWRITE})
    retriever = transforming(INDEX, client=model)
    options: Any = {"history": memory} if is_calls else {}
    asked = retriever if is_calls else retriever.with_history(memory)
    find = asked.afind if is_async else asked.find
    found: Any = find("Is he ill?", **options)
    if is_async:
        found = await found
    told = [("history", "unreadable")] if is_broken else []
    assert [(it.stage, it.reason) for it in found.degradations] == told
    said = [turn.content for turn in model.prompts[0].history]
    assert said == ([] if is_broken else ["Who is Jaco?"])
    assert retriever.history is None


# --- in LlamaIndex --------------------------------------------------------------------------------


@both_ways
async def test_every_search_and_the_models_call_are_spans_within_ours(is_async: bool) -> None:
    model = Replies(reply=json.dumps({"rewrite": REWRITE}))
    with listening() as spans:
        await found_by(transforming(INDEX, client=model), QUESTION, is_async)
    name = "aretrieve" if is_async else "retrieve"
    assert spans.tree[0] == (f"QueryTransformRetriever.{name}", "")
    inner = [it for it, parent in spans.tree[1:] if parent.startswith("QueryTransformRetriever.")]
    assert inner.count(f"VectorIndexRetriever.{name}") == 2
    assert sum(it.startswith("Replies.") for it in inner) == 1


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


# --- the postprocessor ----------------------------------------------------------------------------


async def test_nodes_that_hold_the_keywords_come_first_as_the_rules_tier_has_them() -> None:
    ours = ids(QueryTransformRetriever(INDEX, similarity_top_k=4).retrieve(QUESTION))
    engine = INDEX.as_query_engine(
        llm=MockLLM(),
        similarity_top_k=50,
        # No model is asked, whatever the settings.
        node_postprocessors=[KeywordEvidencePostprocessor(top_n=4, config="balanced")],
    )
    assert ids(engine.query(QUESTION).source_nodes) == ours
    assert ids((await engine.aquery(QUESTION)).source_nodes) == ours


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_without_a_question_or_a_text_nodes_stay_as_they_are() -> None:
    processor = KeywordEvidencePostprocessor()
    assert processor.postprocess_nodes(NODES) == NODES
    for nodes, query in ((NODES, " "), ([], QUESTION), (PICTURES, QUESTION)):
        assert processor.postprocess_nodes(nodes, query_str=query) == nodes
