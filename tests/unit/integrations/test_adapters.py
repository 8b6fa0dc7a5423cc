"""What the retrievers for LangChain, LlamaIndex and Haystack promise alike, each in its framework's words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from haystack import Document as HaystackDocument
from haystack.dataclasses import ChatMessage as HaystackMessage
from haystack.dataclasses import ToolCall
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document as LangChainDocument
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

import qtmiddleware as qtm
from qtmiddleware.integrations import haystack, langchain
from qtmiddleware.testing import ScriptedModel
from tests.support import haystack_world, langchain_world
from tests.support.langchain_world import QUESTION, TEXTS

pytestmark = pytest.mark.thorough

REWRITE = "Is Jaco, the dog, ill?"
PATIENT = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}
CALL = ToolCall("search", {"query": "Jaco"}, id="1")


@dataclass(frozen=True)
class Framework:
    """How a framework's retriever is made and asked, and what it returns."""

    make: Callable[..., Any]
    ask: Callable[..., list[Any]]
    aask: Callable[..., Any]
    account: Callable[..., qtm.Retrieval]
    document: Callable[..., Any]
    read: Callable[[Any], tuple[str, str, dict[str, Any]]]
    count: str
    own_retriever: Callable[[int], Any]
    """A retriever of the framework that finds so many documents, the right one third."""
    conversation: list[Any]

    @property
    def documents(self) -> list[Any]:
        return [self.document(id_, text) for id_, text in TEXTS.items()]

    def ids(self, found: list[Any]) -> list[str]:
        return [self.read(it)[0] for it in found]


async def run_async(retriever: Any, query: Any) -> list[Any]:
    return (await retriever.run_async(query))["documents"]


FRAMEWORKS = {
    "langchain": Framework(
        lambda inner, **options: langchain.QueryTransformRetriever(
            retriever=inner,
            **options,
        ),
        lambda retriever, query: retriever.invoke(query),
        lambda retriever, query: retriever.ainvoke(query),
        lambda retriever, query, **options: retriever.retrieve(query, **options),
        lambda id_, text: LangChainDocument(id=id_, page_content=text),
        lambda it: (it.id, it.page_content, it.metadata),
        "k",
        lambda k: langchain_world.CountingStore().as_retriever(search_kwargs={"k": k}),
        [
            SystemMessage("You are kind."),
            HumanMessage([{"type": "text", "text": "Who is Jaco?"}, {"type": "image_url"}]),
            AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}]),
            ToolMessage("passages of a tool", tool_call_id="1"),
            AIMessage([{"type": "text", "text": "A dog of nine years."}]),
        ],
    ),
    "haystack": Framework(
        haystack.QueryTransformRetriever,
        lambda retriever, query: retriever.run(query)["documents"],
        run_async,
        lambda retriever, query, **options: retriever.retrieve(query, **options),
        lambda id_, text: HaystackDocument(id=id_, content=text),
        lambda it: (it.id, it.content, it.meta),
        "top_k",
        haystack_world.by_words,
        [
            HaystackMessage.from_system("You are kind."),
            HaystackMessage.from_user("Who is Jaco?"),
            HaystackMessage.from_assistant(tool_calls=[CALL]),
            HaystackMessage.from_tool("passages of a tool", origin=CALL),
            HaystackMessage.from_assistant("A dog of nine years."),
        ],
    ),
}
try:
    from llama_index.core.llms import ChatMessage, MessageRole, TextBlock
    from llama_index.core.schema import TextNode

    from qtmiddleware.integrations import llamaindex
    from tests.support import llamaindex_world
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
        lambda count: llamaindex_world.make_index().as_retriever(similarity_top_k=count),
        [
            ChatMessage("You are kind.", role=MessageRole.SYSTEM),
            ChatMessage(role=MessageRole.USER, blocks=[TextBlock(text="Who is Jaco?")]),
            ChatMessage("passages of a tool", role=MessageRole.TOOL),
            ChatMessage("A dog of nine years.", role=MessageRole.ASSISTANT),
        ],
    )


def name_type(value: Any) -> str:
    """A test's name, the same in every process, as an object's address is not."""
    return type(value).__name__


@pytest.fixture(params=FRAMEWORKS.values(), ids=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Framework:
    return request.param  # type: ignore[no-any-return]


# --- what is found --------------------------------------------------------------------------------


async def test_the_passage_that_answers_comes_first_among_as_many_as_before(
    framework: Framework,
) -> None:
    retriever = framework.make(framework.own_retriever(4))
    for found in (framework.ask(retriever, QUESTION), await framework.aask(retriever, QUESTION)):
        assert (framework.ids(found)[0], len(found)) == ("health", 4)


def test_documents_are_the_functions_own_and_stay_as_they_are(framework: Framework) -> None:
    documents = framework.documents
    before = copy.deepcopy(documents)
    found = framework.ask(framework.make(lambda query: documents), QUESTION)
    own = [getattr(it, "node", it) for it in found]
    assert sorted(framework.ids(found)) == sorted(TEXTS)
    assert all(it in documents for it in own)
    assert documents == before


@pytest.mark.parametrize("score", [None, 0.5])
def test_matches_and_pairs_become_documents(framework: Framework, score: float | None) -> None:
    texts = enumerate(TEXTS.values())
    rows = [{"id": n, "score": score, "text": text, "page": 3} for n, text in texts]
    found = framework.ask(framework.make(lambda query: {"matches": rows}), QUESTION)
    assert {framework.read(it)[1] for it in found} == set(TEXTS.values())
    assert framework.read(found[0])[::2] == ("1", {"page": 3})
    pairs = [(it, score or 0.0) for it in framework.documents]
    assert (
        framework.ids(
            framework.ask(
                framework.make(lambda query: pairs),
                QUESTION,
            )
        )[0]
        == "health"
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
@given(query=st.text(), count=st.integers(1, 8))
def test_whatever_is_asked_as_many_documents_come_as_without_us(
    name: str, query: str, count: int
) -> None:
    framework = FRAMEWORKS[name]
    documents = framework.documents

    def search(query: str, top_k: int = 2) -> list[Any]:
        return documents[:top_k]

    retriever = framework.make(search, **{framework.count: count})
    assert len(framework.ask(retriever, query)) == count


async def test_a_function_without_a_number_is_cut_to_it(framework: Framework) -> None:
    documents = framework.documents
    retriever = framework.make(lambda query: documents, **{framework.count: 2})
    assert len(framework.ask(retriever, QUESTION)) == 2
    assert len(await framework.aask(retriever, QUESTION)) == 2
    account = framework.account(retriever, QUESTION, **{framework.count: 3})
    assert (len(account.matches), len(account.response)) == (3, 3)


def test_the_calls_number_goes_before_ours_and_that_before_the_inner_ones(
    framework: Framework,
) -> None:
    inner = framework.own_retriever(3)
    assert len(framework.ask(framework.make(inner), QUESTION)) == 3
    ours = framework.make(inner, **{framework.count: 2})
    assert len(framework.ask(ours, QUESTION)) == 2
    assert len(framework.account(ours, QUESTION, **{framework.count: 5}).matches) == 5


def test_settings_may_be_given_for_a_call_and_a_hook_gets_every_retrieval(
    framework: Framework,
) -> None:
    heard: list[qtm.Retrieval] = []
    model = ScriptedModel({"rewrite": REWRITE})
    options = {"config": PATIENT, "client": model, "on_retrieval": heard.append}
    documents = framework.documents
    retriever = framework.make(lambda query: documents, **options)
    framework.account(retriever, QUESTION, qtm_config="rules")
    assert (model.prompts, [it.status for it in heard]) == ([], ["full"])
    assert retriever.search.check(QUESTION).helps
    with pytest.raises(qtm.ConfigError, match="nonsense"):
        framework.account(retriever, QUESTION, qtm_config={"nonsense": 1})


def test_messages_of_the_framework_are_the_conversation(framework: Framework) -> None:
    model = ScriptedModel({"standalone": "Is Jaco healthy?", "rewrite": REWRITE})
    retriever = framework.make(framework.own_retriever(4), config=PATIENT, client=model)
    found = framework.account(retriever, "Is he ill?", history=framework.conversation)
    assert found.degradations == ()
    (prompt,) = model.prompts
    said = [(turn.role, turn.content) for turn in prompt.history]
    assert said == [("user", "Who is Jaco?"), ("assistant", "A dog of nine years.")]


# --- odd things -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [42, "a text", None, [], int], ids=name_type)
def test_what_is_no_retriever_is_refused_with_what_is_accepted(
    framework: Framework, inner: Any
) -> None:
    with pytest.raises(qtm.ConfigError, match="retriever must be a retriever") as caught:
        framework.make(inner)
    assert caught.value.path == "retriever"
    assert "a function of a query" in caught.value.allowed


def test_what_is_wrapped_already_is_taken_as_it_is(framework: Framework) -> None:
    documents = framework.documents

    class Holder:
        @qtm.middleware
        def search(self, query: str, top_k: int = 4) -> list[Any]:
            return documents[:top_k]

    retriever = framework.make(Holder().search, **{framework.count: 2})
    found = framework.ask(retriever, QUESTION)
    assert (framework.ids(found)[0], len(found)) == ("health", 2)
    with pytest.raises(qtm.ConfigError, match="already wrapped; set config, client where"):
        framework.make(Holder().search, config="auto", client=object())


@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
@pytest.mark.parametrize("returned", [42, "a text", [1, 2], {"answer": 3}], ids=name_type)
async def test_what_returns_no_documents_is_named_by_its_type_alone(
    framework: Framework, returned: Any
) -> None:
    retriever = framework.make(lambda query: returned)
    with pytest.raises(qtm.ResponseShapeError, match="retriever must return") as caught:
        framework.ask(retriever, QUESTION)
    assert "a text" not in str(caught.value)
    with pytest.raises(qtm.ResponseShapeError):
        await framework.aask(retriever, QUESTION)


async def test_an_asynchronous_function_is_awaited_and_refused_where_it_cannot_be(
    framework: Framework,
) -> None:
    documents = framework.documents

    async def search(query: str, k: int = 4) -> list[Any]:
        return documents[:k]

    retriever = framework.make(search, **{framework.count: 2})
    assert framework.ids(await framework.aask(retriever, QUESTION))[0] == "health"
    with pytest.raises(qtm.WrapError, match=r"asynchronous: use .*aretrieve"):
        framework.ask(retriever, QUESTION)


@pytest.mark.parametrize("number", [0, "many"], ids=repr)
def test_an_impossible_number_of_documents_is_refused(framework: Framework, number: Any) -> None:
    with pytest.raises(ValueError, match=framework.count):
        framework.make(lambda query: [], **{framework.count: number})
