"""`QueryTransformRetriever` in LangChain: what it finds, what it tells, and what it makes of odd things."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import create_retriever_tool
from pydantic import Field, ValidationError

from qtmiddleware.integrations.langchain import QueryTransformRetriever
from qtmiddleware.testing import ScriptedModel
from tests.support.langchain_world import QUESTION, TEXTS, CountingStore, Listener

WIDE = 50
REWRITE = "Is Jaco, the dog, ill?"
PATIENT = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}
DOCUMENTS = [Document(id=id_, page_content=text) for id_, text in TEXTS.items()]


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def transforming(inner: Any, **options: Any) -> QueryTransformRetriever:
    return QueryTransformRetriever(
        retriever=inner, config=PATIENT, client=ScriptedModel({"rewrite": REWRITE}), **options
    )


class Plain(BaseRetriever):
    """Takes no number of documents, as most retrievers do."""

    documents: list[Document] = Field(default_factory=lambda: DOCUMENTS)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.documents


class Numbered(Plain):
    """Takes a number under a name of its own."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, top_k: int = 2
    ) -> list[Document]:
        return self.documents[:top_k]


# --- what is found --------------------------------------------------------------------------------


def test_the_passage_that_answers_comes_first_where_the_plain_retriever_has_it_third() -> None:
    store = CountingStore()
    assert ids(store.as_retriever().invoke(QUESTION)).index("health") == 2
    assert QueryTransformRetriever(retriever=store).invoke(QUESTION)[0].id == "health"


def test_documents_are_the_inner_retrievers_own_and_stay_as_they_are() -> None:
    before = copy.deepcopy(DOCUMENTS)
    for inner in (Plain(), lambda query: [(it, 0.5) for it in DOCUMENTS]):
        found = QueryTransformRetriever(retriever=inner).invoke(QUESTION)
        assert sorted(map(id, found)) == sorted(map(id, DOCUMENTS))
    assert before == DOCUMENTS


# --- how many -------------------------------------------------------------------------------------


def test_the_callers_number_goes_before_the_retrievers_and_that_before_the_inner_ones() -> None:
    inner = CountingStore().as_retriever(search_kwargs={"k": 3})
    assert len(QueryTransformRetriever(retriever=inner).invoke(QUESTION)) == 3
    ours = QueryTransformRetriever(retriever=inner, k=2)
    assert [len(ours.invoke(QUESTION)), len(ours.invoke(QUESTION, k=5))] == [2, 5]
    ours.k = 1
    assert len(ours.invoke(QUESTION)) == 1


@pytest.mark.parametrize(
    ("inner", "count"),
    [
        (CountingStore().as_retriever(), 4),
        (CountingStore().as_retriever().bind(k=3), 3),
        (
            CountingStore()
            .as_retriever(search_kwargs={"k": 3})
            .with_config(tags=["x"])
            .with_retry(),
            3,
        ),
        (CountingStore(), 4),
        (Numbered(), 2),
        (Plain(), len(TEXTS)),
        (RunnableLambda(lambda query: DOCUMENTS), len(TEXTS)),
    ],
    ids=["retriever", "bound", "retry", "store", "own name", "no number", "runnable"],
)
async def test_as_many_come_as_the_inner_one_returns_by_itself(inner: Any, count: int) -> None:
    retriever = QueryTransformRetriever(retriever=inner)
    assert len(retriever.invoke(QUESTION)) == count
    assert len(await retriever.ainvoke(QUESTION)) == count


def test_the_inner_one_is_asked_for_more_so_that_there_is_something_to_weigh() -> None:
    store = CountingStore()
    QueryTransformRetriever(retriever=store.as_retriever()).invoke(QUESTION)
    assert store.asked == [(QUESTION, WIDE)]


def test_one_that_looks_for_variety_is_not_asked_for_more() -> None:
    store = CountingStore()
    found = QueryTransformRetriever(retriever=store.as_retriever(search_type="mmr"), k=3).invoke(
        QUESTION, qtm_config="rules"
    )
    assert (store.asked, len(found)) == ([(QUESTION, 3)], 3)


def test_a_retriever_that_hands_on_any_argument_gets_no_number_of_ours() -> None:
    class Hybrid(Plain):
        """As those of services do, whose clients reject an argument that comes twice."""

        top_k: int = 3

        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **more: Any
        ) -> list[Document]:
            assert more == {"filter": 1}
            return self.documents[: self.top_k]

    assert len(QueryTransformRetriever(retriever=Hybrid()).invoke(QUESTION, filter=1)) == 3


def test_further_arguments_go_to_the_inner_retriever() -> None:
    retriever = QueryTransformRetriever(retriever=CountingStore().as_retriever())
    assert ids(retriever.invoke(QUESTION, filter=lambda document: document.id == "cats")) == [
        "cats"
    ]


# --- the conversation -----------------------------------------------------------------------------

CONVERSATION = [
    SystemMessage("You are kind."),
    HumanMessage(
        [{"type": "text", "text": "Who is Jaco?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    ),
    AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}]),
    ToolMessage("passages of a tool", tool_call_id="1"),
    AIMessage([{"type": "text", "text": "A dog of nine years."}]),
]


@pytest.mark.parametrize("is_async", [False, True])
async def test_messages_of_langchain_are_the_conversation(is_async: bool) -> None:
    model = ScriptedModel({"standalone": "Is Jaco healthy?", "rewrite": REWRITE})
    retriever = QueryTransformRetriever(retriever=CountingStore(), config=PATIENT, client=model)
    options: Any = {"history": CONVERSATION}
    found = (
        await retriever.aretrieve("Is he ill?", **options)
        if is_async
        else retriever.retrieve("Is he ill?", **options)
    )
    assert found.degradations == ()
    asked = str(
        [prompt.history for prompt in model.prompts] + [prompt.user for prompt in model.prompts]
    )
    assert "Who is Jaco?" in asked
    assert "A dog of nine years." in asked
    assert "passages of a tool" not in asked
    assert ids(retriever.invoke("Is he ill?", history=CONVERSATION))


# --- what is told ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_every_search_and_the_models_call_are_runs_within_ours(is_async: bool) -> None:
    listener = Listener()
    model = FakeListChatModel(responses=[json.dumps({"rewrite": REWRITE})])
    retriever = QueryTransformRetriever(
        retriever=CountingStore().as_retriever(), config=PATIENT, client=model
    )
    config: Any = {"callbacks": [listener]}
    found = (
        await retriever.ainvoke(QUESTION, config)
        if is_async
        else retriever.invoke(QUESTION, config)
    )
    assert len(found) == 4
    ours = "QueryTransformRetriever"
    assert sorted(listener.tree) == [
        (ours, ""),
        ("VectorStoreRetriever", ours),
        ("VectorStoreRetriever", ours),
        ("model", ours),
    ]


# --- in LangChain ---------------------------------------------------------------------------------


async def test_it_stands_wherever_a_retriever_does() -> None:
    retriever = transforming(CountingStore().as_retriever(), k=2)
    plain = ids(retriever.invoke(QUESTION))
    assert [ids(it) for it in retriever.batch([QUESTION, QUESTION])] == [plain, plain]
    assert [ids(it) for it in await retriever.abatch([QUESTION, QUESTION], k=2)] == [plain, plain]
    assert [ids(it) async for it in retriever.astream(QUESTION)] == [plain]
    assert [ids(it) for it in retriever.stream(QUESTION)] == [plain]


async def test_it_works_as_a_tool() -> None:
    tool = create_retriever_tool(
        transforming(CountingStore().as_retriever(), k=1), "search", "Searches."
    )
    assert tool.invoke({"query": QUESTION}) == TEXTS["health"]
    assert await tool.ainvoke({"query": QUESTION}) == TEXTS["health"]


# --- odd things -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [{"k": 0}, {"k": -1}, {"k": "many"}, {"top_k": 4}, {"confg": {}}], ids=repr
)
def test_a_field_that_is_unknown_or_impossible_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        QueryTransformRetriever(retriever=Plain(), **fields)


def test_what_would_have_no_effect_later_cannot_be_set() -> None:
    retriever = QueryTransformRetriever(retriever=Plain())
    for name in ("retriever", "config", "client", "on_retrieval"):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(retriever, name, None)
    with pytest.raises(ValidationError):
        retriever.k = 0


def test_its_fields_are_configurable_for_a_call() -> None:
    from langchain_core.runnables import ConfigurableField

    retriever = QueryTransformRetriever(retriever=Plain(), k=2).configurable_fields(
        k=ConfigurableField(id="k")
    )
    assert len(retriever.with_config(configurable={"k": 3}).invoke(QUESTION)) == 3


def test_its_representation_shows_no_client() -> None:
    shown = repr(
        QueryTransformRetriever(
            retriever=Plain(documents=[]), client=ScriptedModel("secret"), config="auto"
        )
    )
    assert "config='auto'" in shown
    assert "client" not in shown
