"""What docs/frameworks.md shows, run as it stands against each framework."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tests.support.model_server import ModelServer

PAGE = (Path(__file__).parents[2] / "docs/frameworks.md").read_text(encoding="utf-8")
QUESTION = "Does Jaco have any health concerns?"
REPLY = {
    "standalone": "What did Jaco eat last year?",
    "rewrite": "Jaco's food last year",
    "hyde": "He eats fish.",
}


def run(framework: str, space: dict[str, Any]) -> dict[str, Any]:
    """The names that the blocks of *framework* leave behind in *space*, one after the other."""
    for block in re.findall(
        rf"^```python {framework}\n(.*?)^```",
        PAGE,
        re.DOTALL | re.MULTILINE,
    ):
        exec(compile(block, "docs/frameworks.md", "exec"), space)
    return space


def test_langchain() -> None:
    from langchain_core.documents import Document
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.runnables import RunnableLambda

    from tests.support.langchain_world import TEXTS, CountingStore

    words = [Document(id="health", page_content=TEXTS["health"])]
    left = run(
        "langchain",
        {
            "vectorstore": CountingStore(),
            "keyword_retriever": RunnableLambda(lambda query: words),
            "llm": FakeListChatModel(responses=[json.dumps(REPLY)]),
        },
    )
    assert len(left["documents"]) == 4
    assert (left["found"].status, left["found"].degradations) == ("full", ())
    assert left["hybrid"].invoke(QUESTION)[0].id == "health"
    history = [HumanMessage("Who is Jaco?"), AIMessage("A dog.")]
    assert len(left["aware"].invoke({"input": QUESTION, "chat_history": history})) == 4


@pytest.mark.thorough
@pytest.mark.usefixtures("closed_loop")
def test_llamaindex() -> None:
    from llama_index.core.llms import ChatMessage

    from tests.support.llamaindex_world import Replies, make_index

    left = run(
        "llamaindex",
        {"index": make_index(), "llm": Replies(reply=json.dumps(REPLY))},
    )
    assert len(left["nodes"]) == 4
    assert left["engine"].query(QUESTION).source_nodes[0].node_id == "health"
    left["memory"].put(ChatMessage("What did Jaco eat?"))
    left["memory"].put(ChatMessage("Fish.", role="assistant"))
    nodes = left["chat"].chat("And last year?").source_nodes
    assert "food" in [node.node_id for node in nodes][:2], nodes


@pytest.mark.filterwarnings("ignore:Mutating attribute")  # by what joins, before 2.31
def test_haystack(
    httpserver: HTTPServer,
    bare_environment: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from haystack import Pipeline
    from haystack.components.generators.chat import OpenAIChatGenerator

    from tests.support.haystack_world import AsyncPipeline, WordEmbedder, make_store

    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    server = ModelServer(httpserver, REPLY)
    page = PAGE.replace("my_package", "tests")
    if AsyncPipeline is not Pipeline:
        page = re.sub(r", allowed_modules=\[.*\]", "", page)
    monkeypatch.setitem(globals(), "PAGE", page)
    left = run(
        "haystack",
        {
            "document_store": make_store(),
            "embedder": WordEmbedder(),
            "chat_generator": OpenAIChatGenerator(api_base_url=server.url),
        },
    )
    assert len(left["documents"]) == 4
    assert left["found"]["status"] == "full"
    assert server.keys[0] == "Bearer sk-of-the-environment"
    assert "OPENAI_API_KEY" in left["text"]
    assert "sk-of-the-environment" not in left["text"]
    inputs = {"retriever": {"query": "What did Jaco eat last year?"}}
    assert left["again"].run(inputs)["retriever"]["documents"][0].id == "food"
    assert left["retriever"].run(QUESTION)["documents"][0].id == "health"
