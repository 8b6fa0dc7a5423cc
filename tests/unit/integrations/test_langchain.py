"""`QueryTransformRetriever` in LangChain: what it finds, what it tells, and what it makes of odd things."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from pydantic import Field, ValidationError

import qtmiddleware as qtm
from qtmiddleware.integrations.langchain import EVENT, QueryTransformRetriever
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


def name_type(value: Any) -> str:
    """A test's name, the same in every process, as an object's address is not."""
    return type(value).__name__


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

    top_k: int = 2

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **more: Any
    ) -> list[Document]:
        return self.documents[: more.get("top_k", self.top_k)]


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


@pytest.mark.parametrize("score", [None, 0.5])
def test_matches_of_another_shape_become_documents(score: float | None) -> None:
    rows = [{"id": 7, "score": score, "text": text, "page": 3} for text in TEXTS.values()]
    found = QueryTransformRetriever(retriever=lambda query: {"matches": rows}).invoke(QUESTION)
    assert {it.page_content for it in found} == set(TEXTS.values())
    assert (found[0].id, found[0].metadata) == ("7", {"page": 3})


def test_a_match_has_its_scores_and_the_document_it_is() -> None:
    found = QueryTransformRetriever(retriever=CountingStore(), k=2).retrieve(QUESTION)
    assert len(found.matches) == 2
    document, score = found.matches[0].raw
    assert (document.id, score) == (found.matches[0].id, found.matches[0].score)
    assert found.matches[0].fused_score is not None


@given(query=st.text(), k=st.integers(1, 8))
def test_whatever_is_asked_as_many_documents_come_as_without_us(query: str, k: int) -> None:
    plain = Numbered()
    found = QueryTransformRetriever(retriever=plain, k=k).invoke(query)
    assert len(found) == len(plain.invoke(query, top_k=k))
    assert {id(it) for it in found} <= {id(it) for it in DOCUMENTS}


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


@pytest.mark.parametrize(
    "inner", [Plain(), lambda query: DOCUMENTS, RunnableLambda(lambda query: DOCUMENTS)]
)
def test_what_takes_no_number_is_cut_to_it(inner: Any) -> None:
    retriever = QueryTransformRetriever(retriever=inner, k=2)
    assert [len(retriever.invoke(QUESTION)), len(retriever.retrieve(QUESTION, k=3).matches)] == [
        2,
        3,
    ]
    assert retriever.invoke(QUESTION)[0].id == "health"


def test_what_only_passes_arguments_on_is_not_asked_for_more() -> None:
    class Compressor(Plain):
        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **more: Any
        ) -> list[Document]:
            assert more == {"filter": 1}
            return self.documents

    assert len(QueryTransformRetriever(retriever=Compressor(), k=3).invoke(QUESTION, filter=1)) == 3


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


def test_a_conversation_that_cannot_be_read_is_told_and_costs_nothing() -> None:
    retriever = QueryTransformRetriever(retriever=CountingStore())
    found = retriever.retrieve(QUESTION, history=[object()])
    assert [(it.stage, it.reason) for it in found.degradations] == [("history", "unreadable")]
    assert len(found.matches) == 4


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


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_account_may_be_asked_for_under_callbacks_too(is_async: bool) -> None:
    listener, inner = Listener(), CountingStore().as_retriever()
    retriever = QueryTransformRetriever(retriever=inner, k=2)
    options: Any = {"config": {"callbacks": [listener]}}
    found = (
        await retriever.aretrieve(QUESTION, **options)
        if is_async
        else retriever.retrieve(QUESTION, **options)
    )
    assert (len(found.matches), listener.tree) == (2, [("VectorStoreRetriever", "")])


def test_settings_may_be_given_for_a_call() -> None:
    model = ScriptedModel({"rewrite": REWRITE})
    retriever = QueryTransformRetriever(retriever=CountingStore(), config=PATIENT, client=model)
    retriever.invoke(QUESTION, qtm_config="rules")
    assert model.prompts == []
    with pytest.raises(qtm.ConfigError, match="nonsense"):
        retriever.invoke(QUESTION, qtm_config={"nonsense": 1})


def test_a_runnable_that_a_function_calls_is_a_run_within_ours() -> None:
    listener, inner = Listener(), CountingStore().as_retriever()
    QueryTransformRetriever(retriever=lambda query: inner.invoke(query)).invoke(
        QUESTION, {"callbacks": [listener]}
    )
    assert ("VectorStoreRetriever", "QueryTransformRetriever") in listener.tree


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_event_tells_how_the_documents_were_found(is_async: bool) -> None:
    listener = Listener()
    model = ScriptedModel(RuntimeError("down"))
    retriever = QueryTransformRetriever(retriever=CountingStore(), config=PATIENT, client=model)
    config: Any = {"callbacks": [listener]}
    await retriever.ainvoke(QUESTION, config) if is_async else retriever.invoke(QUESTION, config)
    ((name, data, run_id),) = listener.events
    assert (name, listener.runs[run_id][0]) == (EVENT, "QueryTransformRetriever")
    assert (data["status"], data["variants"][0]["kind"]) == ("degraded", "original")
    assert data["degradations"][0][:2] == ["transform.rewrite", "unavailable"]
    assert data["retrieval_steps"]["final"][0]["id"] == "health"
    json.dumps(data)


async def test_the_event_is_among_those_of_astream_events() -> None:
    retriever = transforming(CountingStore().as_retriever())
    events = [event async for event in retriever.astream_events(QUESTION, version="v2")]
    (told,) = [event for event in events if event["event"] == "on_custom_event"]
    assert [it["kind"] for it in told["data"]["variants"]] == ["original", "rewrite"]


def test_the_event_holds_of_texts_what_redact_leaves() -> None:
    listener = Listener()
    retriever = QueryTransformRetriever(
        retriever=CountingStore(), redact=lambda text: text.replace("Jaco", "X")
    )
    retriever.invoke(QUESTION, {"callbacks": [listener]})
    assert "Jaco" not in json.dumps(listener.events[0][1]["variants"])


def test_a_hook_gets_every_retrieval_and_checking_is_at_hand() -> None:
    heard: list[qtm.Retrieval] = []
    retriever = QueryTransformRetriever(retriever=CountingStore(), on_retrieval=heard.append)
    retriever.invoke(QUESTION)
    assert [it.status for it in heard] == ["full"]
    assert retriever.search.check(QUESTION).helps


def test_a_trace_names_our_retriever_and_the_inner_ones_store() -> None:
    told = QueryTransformRetriever(retriever=CountingStore().as_retriever())._get_ls_params()
    assert (told["ls_retriever_name"], told["ls_vector_store_provider"]) == (
        "querytransform",
        "CountingStore",
    )


# --- in LangChain ---------------------------------------------------------------------------------


async def test_it_stands_wherever_a_retriever_does() -> None:
    retriever = transforming(CountingStore().as_retriever(), k=2)
    plain = ids(retriever.invoke(QUESTION))
    assert [ids(it) for it in retriever.batch([QUESTION, QUESTION])] == [plain, plain]
    assert [ids(it) for it in await retriever.abatch([QUESTION, QUESTION], k=2)] == [plain, plain]
    assert [ids(it) async for it in retriever.astream(QUESTION)] == [plain]
    assert [ids(it) for it in retriever.stream(QUESTION)] == [plain]


def test_it_works_in_a_chain_with_a_conversation() -> None:
    retriever = transforming(CountingStore().as_retriever(), k=1)
    llm = FakeListChatModel(responses=["yes"])
    chain = (
        RunnablePassthrough.assign(
            context=RunnableLambda(
                lambda it: retriever.invoke(it["input"], history=it["chat_history"])
            )
        )
        | RunnableLambda(lambda it: it["context"][0].page_content)
        | llm
        | StrOutputParser()
    )
    listener = Listener()
    assert (
        chain.invoke({"input": QUESTION, "chat_history": CONVERSATION}, {"callbacks": [listener]})
        == "yes"
    )
    assert len(listener.events) == 1
    assert all(parent or name == "RunnableSequence" for name, parent in listener.tree)


async def test_it_works_as_a_tool() -> None:
    tool = create_retriever_tool(
        transforming(CountingStore().as_retriever(), k=1), "search", "Searches."
    )
    assert tool.invoke({"query": QUESTION}) == TEXTS["health"]
    assert await tool.ainvoke({"query": QUESTION}) == TEXTS["health"]


# --- odd things -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner", [42, "a text", None, object(), CountingStore, [Plain()]], ids=name_type
)
def test_what_is_no_retriever_is_refused_with_what_is_accepted(inner: Any) -> None:
    with pytest.raises(
        qtm.ConfigError, match="retriever must be a retriever or other Runnable"
    ) as caught:
        QueryTransformRetriever(retriever=inner)
    assert (caught.value.path, "a vector store" in caught.value.allowed) == ("retriever", True)


def test_what_is_wrapped_already_is_taken_as_it_is() -> None:
    @qtm.middleware
    def search(query: str, top_k: int = 4) -> list[Document]:
        return DOCUMENTS[:top_k]

    class Holder:
        @qtm.middleware
        def search(self, query: str, top_k: int = 4) -> list[Document]:
            return DOCUMENTS[:top_k]

    for inner in (search, Holder().search):
        retriever = QueryTransformRetriever(retriever=inner, k=2)
        assert ids(retriever.invoke(QUESTION))[0] == "health"
        assert len(retriever.invoke(QUESTION)) == 2
        with pytest.raises(
            qtm.ConfigError, match="already wrapped; set config, client where you wrap it"
        ):
            QueryTransformRetriever(retriever=inner, config="auto", client=object())


@pytest.mark.parametrize(
    "fields", [{"k": 0}, {"k": -1}, {"k": "many"}, {"top_k": 4}, {"confg": {}}], ids=name_type
)
def test_a_field_that_is_unknown_or_impossible_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        QueryTransformRetriever(retriever=Plain(), **fields)


def test_bad_settings_are_refused_as_everywhere() -> None:
    with pytest.raises(qtm.ConfigError, match="nonsense is not a setting"):
        QueryTransformRetriever(retriever=Plain(), config={"nonsense": 1})


def test_what_would_have_no_effect_later_cannot_be_set() -> None:
    retriever = QueryTransformRetriever(retriever=Plain())
    for name in ("retriever", "config", "client", "on_retrieval"):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(retriever, name, None)
    with pytest.raises(ValidationError):
        retriever.k = 0


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
@pytest.mark.parametrize(
    "returned", [42, "a text", [1, 2], [object()], {"answer": 3}], ids=name_type
)
async def test_what_returns_no_documents_is_named_by_its_type_alone(returned: Any) -> None:
    retriever = QueryTransformRetriever(retriever=lambda query: returned)
    with pytest.raises(qtm.ResponseShapeError, match="retriever must return") as caught:
        retriever.invoke(QUESTION)
    assert "a text" not in str(caught.value)
    with pytest.raises(qtm.ResponseShapeError):
        await retriever.ainvoke(QUESTION)


@pytest.mark.parametrize("returned", [[], {"matches": []}, None], ids=name_type)
def test_nothing_found_is_no_documents(returned: Any) -> None:
    assert QueryTransformRetriever(retriever=lambda query: returned).invoke(QUESTION) == []


async def test_an_asynchronous_function_is_awaited_and_refused_where_it_cannot_be() -> None:
    async def search(query: str, k: int = 4) -> list[Document]:
        await asyncio.sleep(0)
        return DOCUMENTS[:k]

    retriever = QueryTransformRetriever(retriever=search, k=2)
    assert (await retriever.ainvoke(QUESTION))[0].id == "health"
    with pytest.raises(qtm.WrapError, match="ainvoke"):
        retriever.invoke(QUESTION)


@pytest.mark.parametrize(
    "error", [ValueError("theirs"), KeyboardInterrupt(), SystemExit(3)], ids=name_type
)
def test_what_the_inner_retriever_raises_passes_through(error: BaseException) -> None:
    def search(query: str) -> list[Document]:
        raise error

    listener = Listener()
    with pytest.raises(type(error)) as caught:
        QueryTransformRetriever(retriever=search).invoke(QUESTION, {"callbacks": [listener]})
    assert caught.value is error
    assert listener.errors == ([error] if isinstance(error, Exception) else [])


async def test_cancelling_a_call_cancels_its_search() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def search(query: str) -> list[Document]:
        began.set()
        try:
            await asyncio.sleep(50)
        finally:
            ended.set()
        return []

    call = asyncio.create_task(QueryTransformRetriever(retriever=search).ainvoke(QUESTION))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


@pytest.mark.parametrize("query", ["", "   ", 42, None, {"input": "x"}], ids=name_type)
def test_a_query_that_is_no_question_is_passed_on_as_it_is(query: Any) -> None:
    asked: list[Any] = []

    def search(query: Any) -> list[Document]:
        asked.append(query)
        return DOCUMENTS

    assert QueryTransformRetriever(retriever=search).invoke(query) == DOCUMENTS
    assert asked == [query]


def test_a_copy_is_a_retriever_of_its_own() -> None:
    retriever = QueryTransformRetriever(
        retriever=CountingStore().as_retriever(), k=2, tags=["ours"]
    )
    other = retriever.model_copy(
        update={"k": 3, "retriever": Plain(), "config": {"preprocess": False}}
    )
    assert (len(other.invoke(QUESTION)), other.tags, retriever.k) == (3, ["ours"], 2)
    for again in (copy.copy(retriever), copy.deepcopy(retriever), retriever.model_copy(deep=True)):
        assert ids(again.invoke(QUESTION)) == ids(retriever.invoke(QUESTION))


def test_a_deep_copy_shares_the_client_which_cannot_be_copied() -> None:
    with openai.OpenAI(api_key="sk-key", base_url="http://127.0.0.1:9") as client:
        retriever = QueryTransformRetriever(
            retriever=CountingStore().as_retriever(), client=client, k=2
        )
        for deep in (copy.deepcopy(retriever), retriever.model_copy(deep=True)):
            assert deep.client is client
            assert ids(deep.invoke(QUESTION)) == ids(retriever.invoke(QUESTION))


def test_it_is_pickled_as_what_it_is_made_of() -> None:
    retriever = QueryTransformRetriever(retriever=Plain(), config="words", k=2)
    again = pickle.loads(pickle.dumps(retriever))
    assert (ids(again.invoke(QUESTION)), again.config) == (ids(retriever.invoke(QUESTION)), "words")
    with pytest.raises(TypeError, match="create the middleware in the worker"):
        pickle.dumps(QueryTransformRetriever(retriever=Plain(), client=ScriptedModel("{}")))


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


def test_last_year_is_the_one_before_the_clock_s() -> None:
    def clock() -> datetime:
        return datetime(2021, 3, 1, tzinfo=UTC)

    def find_by_year(query: str) -> list[dict[str, Any]]:
        return [
            {"id": f"{year}", "score": 0.9, "text": "A limit.", "metadata": {"year": year}}
            for year in range(2024, 2017, -1)
        ]

    question = "What was the limit last year?"
    found = QueryTransformRetriever(retriever=find_by_year, clock=clock).retrieve(question)
    assert found.matches[0].id == "2020"
