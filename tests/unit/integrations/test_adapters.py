"""What the retrievers for LangChain, LlamaIndex and Haystack promise alike, each in its framework's words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from haystack import Document as HaystackDocument
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document as LangChainDocument

import qtmiddleware as qtm
from qtmiddleware.integrations import haystack, langchain
from qtmiddleware.testing import ScriptedModel
from tests.support.langchain_world import QUESTION, TEXTS

REWRITE = "Is Jaco, the dog, ill?"
PATIENT = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}


@dataclass(frozen=True)
class Framework:
    """How a framework's retriever is made and asked, and what it returns."""

    make: Callable[..., Any]
    ask: Callable[..., list[Any]]
    aask: Callable[..., Any]
    account: Callable[..., qtm.Retrieval]
    document: Callable[[str, str], Any]
    read: Callable[[Any], tuple[str, str, dict[str, Any]]]
    count: str

    @property
    def documents(self) -> list[Any]:
        return [self.document(id_, text) for id_, text in TEXTS.items()]


async def run_async(retriever: Any, query: Any) -> list[Any]:
    return (await retriever.run_async(query))["documents"]


FRAMEWORKS = {
    "langchain": Framework(
        lambda inner, **options: langchain.QueryTransformRetriever(retriever=inner, **options),
        lambda retriever, query: retriever.invoke(query),
        lambda retriever, query: retriever.ainvoke(query),
        lambda retriever, query, **options: retriever.retrieve(query, **options),
        lambda id_, text: LangChainDocument(id=id_, page_content=text),
        lambda it: (it.id, it.page_content, it.metadata),
        "k",
    ),
    "haystack": Framework(
        haystack.QueryTransformRetriever,
        lambda retriever, query: retriever.run(query)["documents"],
        run_async,
        lambda retriever, query, **options: retriever.retrieve(query, **options),
        lambda id_, text: HaystackDocument(id=id_, content=text),
        lambda it: (it.id, it.content, it.meta),
        "top_k",
    ),
}
try:
    from llama_index.core.schema import TextNode

    from qtmiddleware.integrations import llamaindex
except ImportError:  # the everyday environment does without it
    pass
else:
    FRAMEWORKS["llamaindex"] = Framework(
        llamaindex.QueryTransformRetriever,
        lambda retriever, query: retriever.retrieve(query),
        lambda retriever, query: retriever.aretrieve(query),
        lambda retriever, query, **options: retriever.find(query, **options),
        lambda id_, text: TextNode(id_=id_, text=text),
        lambda it: (it.node_id, it.text, it.metadata),
        "similarity_top_k",
    )


def name_type(value: Any) -> str:
    """A test's name, the same in every process, as an object's address is not."""
    return type(value).__name__


@pytest.fixture(params=FRAMEWORKS.values(), ids=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Framework:
    return request.param  # type: ignore[no-any-return]


def ids(framework: Framework, found: list[Any]) -> list[str]:
    return [framework.read(it)[0] for it in found]


# --- what is found --------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [None, 0.5])
def test_matches_of_another_shape_become_documents(
    framework: Framework, score: float | None
) -> None:
    rows = [
        {"id": number, "score": score, "text": text, "page": 3}
        for number, text in enumerate(TEXTS.values())
    ]
    found = framework.ask(framework.make(lambda query: {"matches": rows}), QUESTION)
    assert {framework.read(it)[1] for it in found} == set(TEXTS.values())
    assert (framework.read(found[0])[0], framework.read(found[0])[2]) == ("1", {"page": 3})


def test_pairs_of_document_and_score_become_documents(framework: Framework) -> None:
    pairs = [(it, 0.5) for it in framework.documents]
    found = framework.ask(framework.make(lambda query: pairs, **{framework.count: 3}), QUESTION)
    assert (len(found), ids(framework, found)[0]) == (3, "health")


@pytest.mark.parametrize("name", FRAMEWORKS)
@given(query=st.text(), count=st.integers(1, 8))
def test_whatever_is_asked_as_many_documents_come_as_without_us(
    name: str, query: str, count: int
) -> None:
    framework = FRAMEWORKS[name]
    documents = framework.documents

    def search(query: str, top_k: int = 2) -> list[Any]:
        return documents[:top_k]

    found = framework.ask(framework.make(search, **{framework.count: count}), query)
    assert len(found) == count


async def test_a_function_without_a_number_is_cut_to_it(framework: Framework) -> None:
    documents = framework.documents
    retriever = framework.make(lambda query: documents, **{framework.count: 2})
    assert len(framework.ask(retriever, QUESTION)) == 2
    assert len(await framework.aask(retriever, QUESTION)) == 2
    account = framework.account(retriever, QUESTION, **{framework.count: 3})
    assert (len(account.matches), len(account.response)) == (3, 3)


def test_settings_may_be_given_for_a_call_and_a_hook_gets_every_retrieval(
    framework: Framework,
) -> None:
    heard: list[qtm.Retrieval] = []
    model = ScriptedModel({"rewrite": REWRITE})
    documents = framework.documents
    retriever = framework.make(
        lambda query: documents, config=PATIENT, client=model, on_retrieval=heard.append
    )
    framework.account(retriever, QUESTION, qtm_config="rules")
    assert (model.prompts, [it.status for it in heard]) == ([], ["full"])
    assert retriever.search.check(QUESTION).helps
    with pytest.raises(qtm.ConfigError, match="nonsense"):
        framework.account(retriever, QUESTION, qtm_config={"nonsense": 1})


def test_a_conversation_that_cannot_be_read_is_told_and_costs_nothing(
    framework: Framework,
) -> None:
    documents = framework.documents
    account = framework.account(
        framework.make(lambda query: documents), QUESTION, history=[object()]
    )
    assert [(it.stage, it.reason) for it in account.degradations] == [("history", "unreadable")]
    assert len(account.matches) == len(TEXTS)


# --- odd things -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [42, "a text", None, object(), [], int], ids=name_type)
def test_what_is_no_retriever_is_refused_with_what_is_accepted(
    framework: Framework, inner: Any
) -> None:
    with pytest.raises(qtm.ConfigError, match="retriever must be a retriever") as caught:
        framework.make(inner)
    assert caught.value.path == "retriever"
    assert "a function of a query" in caught.value.allowed


def test_what_is_wrapped_already_is_taken_as_it_is(framework: Framework) -> None:
    documents = framework.documents

    @qtm.middleware
    def search(query: str, top_k: int = 4) -> list[Any]:
        return documents[:top_k]

    class Holder:
        @qtm.middleware
        def search(self, query: str, top_k: int = 4) -> list[Any]:
            return documents[:top_k]

    for inner in (search, Holder().search):
        retriever = framework.make(inner, **{framework.count: 2})
        assert ids(framework, framework.ask(retriever, QUESTION))[0] == "health"
        assert len(framework.ask(retriever, QUESTION)) == 2
        with pytest.raises(
            qtm.ConfigError, match="already wrapped; set config, client where you wrap it"
        ):
            framework.make(inner, config="auto", client=object())


def test_bad_settings_are_refused_as_everywhere(framework: Framework) -> None:
    with pytest.raises(qtm.ConfigError, match="nonsense is not a setting"):
        framework.make(lambda query: [], config={"nonsense": 1})


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
@pytest.mark.parametrize(
    "returned", [42, "a text", [1, 2], [object()], {"answer": 3}], ids=name_type
)
async def test_what_returns_no_documents_is_named_by_its_type_alone(
    framework: Framework, returned: Any
) -> None:
    retriever = framework.make(lambda query: returned)
    with pytest.raises(qtm.ResponseShapeError, match="retriever must return") as caught:
        framework.ask(retriever, QUESTION)
    assert "a text" not in str(caught.value)
    with pytest.raises(qtm.ResponseShapeError):
        await framework.aask(retriever, QUESTION)


@pytest.mark.parametrize("returned", [[], {"matches": []}, None], ids=name_type)
def test_nothing_found_is_no_documents(framework: Framework, returned: Any) -> None:
    assert framework.ask(framework.make(lambda query: returned), QUESTION) == []


async def test_an_asynchronous_function_is_awaited_and_refused_where_it_cannot_be(
    framework: Framework,
) -> None:
    documents = framework.documents

    async def search(query: str, k: int = 4) -> list[Any]:
        await asyncio.sleep(0)
        return documents[:k]

    retriever = framework.make(search, **{framework.count: 2})
    assert ids(framework, await framework.aask(retriever, QUESTION))[0] == "health"
    with pytest.raises(qtm.WrapError, match=r"asynchronous: use .*aretrieve"):
        framework.ask(retriever, QUESTION)


@pytest.mark.parametrize(
    "error", [ValueError("theirs"), KeyboardInterrupt(), SystemExit(3)], ids=name_type
)
def test_what_the_inner_retriever_raises_passes_through(
    framework: Framework, error: BaseException
) -> None:
    def search(query: str) -> list[Any]:
        raise error

    with pytest.raises(type(error)) as caught:
        framework.ask(framework.make(search), QUESTION)
    assert caught.value is error


async def test_cancelling_a_call_cancels_its_search(framework: Framework) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def search(query: str) -> list[Any]:
        began.set()
        try:
            await asyncio.sleep(50)
        finally:
            ended.set()
        return []

    call = asyncio.ensure_future(framework.aask(framework.make(search), QUESTION))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


@pytest.mark.parametrize("number", [0, -1, "many"], ids=repr)
def test_an_impossible_number_of_documents_is_refused(framework: Framework, number: Any) -> None:
    with pytest.raises(ValueError, match=framework.count):
        framework.make(lambda query: [], **{framework.count: number})
