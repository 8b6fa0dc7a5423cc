"""`QueryTransformRetriever` in LangChain: how many it finds, what it tells, and what it makes of odd things."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.tools import create_retriever_tool
from pydantic import ValidationError

from qtmiddleware.integrations.langchain import QueryTransformRetriever
from tests.support.langchain_world import QUESTION, TEXTS, CountingStore, Listener

WIDE = 50
REWRITE = "Is Jaco, the dog, ill?"
DOCUMENTS = [Document(id=id_, page_content=text) for id_, text in TEXTS.items()]


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


class Plain(BaseRetriever):
    """Takes no number of documents, as most retrievers do."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return DOCUMENTS


class Numbered(BaseRetriever):
    """Takes a number under a name of its own."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, top_k: int = 2
    ) -> list[Document]:
        return DOCUMENTS[:top_k]


class Service(BaseRetriever):
    """Hands on any argument, as those of services do, whose clients reject a second number."""

    top_k: int = 3

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **more: Any
    ) -> list[Document]:
        assert more == {}
        return DOCUMENTS[: self.top_k]


def retriever_of(count: int = 4) -> Any:
    return CountingStore().as_retriever(search_kwargs={"k": count})


@pytest.mark.parametrize(
    ("inner", "count"),
    [
        (retriever_of().bind(k=3), 3),
        (retriever_of(3).with_config(tags=["x"]).with_retry(), 3),
        (CountingStore(), 4),
        (Numbered(), 2),
        (Service(), 3),
        (Plain(), len(TEXTS)),
        (RunnableLambda(lambda query: DOCUMENTS), len(TEXTS)),
    ],
    ids=["bound", "retry", "store", "own name", "service", "no number", "runnable"],
)
async def test_as_many_come_as_the_inner_one_returns_by_itself(inner: Any, count: int) -> None:
    retriever = QueryTransformRetriever(retriever=inner)
    assert len(retriever.invoke(QUESTION)) == count
    assert len(await retriever.ainvoke(QUESTION)) == count
    retriever.k = 1
    assert len(retriever.invoke(QUESTION)) == 1
    assert len(retriever.invoke(QUESTION, k=2)) == 2


@pytest.mark.parametrize(("search_type", "asked"), [("similarity", WIDE), ("mmr", 3)])
def test_the_inner_one_is_asked_for_more_unless_it_looks_for_variety(
    search_type: str, asked: int
) -> None:
    store = CountingStore()
    inner = store.as_retriever(search_type=search_type)
    found = QueryTransformRetriever(retriever=inner, k=3).invoke(
        QUESTION,
        qtm_config="rules",
    )
    assert (store.asked, len(found)) == ([(QUESTION, asked)], 3)


@pytest.mark.parametrize("is_async", [False, True])
async def test_every_search_and_the_models_call_are_runs_within_ours(is_async: bool) -> None:
    listener = Listener()
    retriever = QueryTransformRetriever(
        retriever=retriever_of(),
        config={
            "transformationType": "rewrite",
            "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
        },
        client=FakeListChatModel(responses=[json.dumps({"rewrite": REWRITE})]),
    )
    config: Any = {"callbacks": [listener]}
    if is_async:
        await retriever.ainvoke(QUESTION, config)
    else:
        retriever.invoke(QUESTION, config)
    ours = "QueryTransformRetriever"
    search = ("VectorStoreRetriever", ours)
    assert sorted(listener.tree) == [(ours, ""), search, search, ("model", ours)]


async def test_it_stands_wherever_a_retriever_does() -> None:
    retriever = QueryTransformRetriever(retriever=retriever_of(), k=2)
    plain = ids(retriever.invoke(QUESTION))
    assert [ids(it) for it in retriever.batch([QUESTION, QUESTION])] == [plain, plain]
    assert [ids(it) async for it in retriever.astream(QUESTION)] == [plain]
    field = retriever.configurable_fields(k=ConfigurableField(id="k"))
    assert len(field.with_config(configurable={"k": 3}).invoke(QUESTION)) == 3
    tool = create_retriever_tool(
        QueryTransformRetriever(retriever=retriever, k=1),
        "a",
        "b",
    )
    assert tool.invoke({"query": QUESTION}) == TEXTS["health"]
    assert await tool.ainvoke({"query": QUESTION}) == TEXTS["health"]


@pytest.mark.parametrize("fields", [{"top_k": 4}, {"confg": {}}], ids=repr)
def test_an_unknown_field_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        QueryTransformRetriever(retriever=Plain(), **fields)
