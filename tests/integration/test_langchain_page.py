"""What docs/frameworks.md shows for LangChain, run as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from qtmiddleware.integrations.langchain import QueryTransformRetriever
from tests.support.langchain_world import QUESTION, TEXTS, CountingStore, split_words

PAGE = (Path(__file__).parents[2] / "docs/frameworks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python (\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REPLY = {
    "standalone": "What did Jaco eat last year?",
    "rewrite": "Jaco's food last year",
    "hyde": "He eats fish.",
}


def find_words(query: str) -> list[Document]:
    wanted = set(split_words(query))
    found = sorted(
        TEXTS.items(), key=lambda it: len(wanted & set(split_words(it[1]))), reverse=True
    )
    return [Document(id=id_, page_content=text) for id_, text in found]


def run(kind: str) -> list[dict[str, Any]]:
    """The names each block of *kind* leaves behind; a block goes on with those before it."""
    space: dict[str, Any] = {
        "vectorstore": CountingStore(),
        "keyword_retriever": RunnableLambda(find_words),
        "llm": FakeListChatModel(responses=[json.dumps(REPLY)]),
    }
    left = []
    for name, block in BLOCKS:
        if name == kind:
            exec(compile(block, "docs/frameworks.md", "exec"), space)
            left.append(dict(space))
    return left


def test_every_block_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    left = run("langchain")[-1]
    assert len(left["documents"]) == 4
    assert (left["found"].status, left["found"].degradations) == ("full", ())
    assert "original" in capsys.readouterr().out
    assert left["hybrid"].invoke(QUESTION)[0].id == "health"
    history = [HumanMessage("Who is Jaco?"), AIMessage("A dog.")]
    assert len(left["aware"].invoke({"input": QUESTION, "chat_history": history})) == 4


def test_the_model_may_be_bound_to_tags() -> None:
    llm = FakeListChatModel(responses=[json.dumps(REPLY)]).with_config(tags=["nostream"])
    found = QueryTransformRetriever(
        retriever=CountingStore(), config="balanced", client=llm
    ).retrieve(QUESTION)
    assert (found.status, found.trace.llm_calls) == ("full", 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_retriever_of_langchain_classic_can_be_wrapped() -> None:
    classic = pytest.importorskip("langchain_classic.retrievers")
    ensemble = classic.EnsembleRetriever(
        retrievers=[CountingStore().as_retriever(), RunnableLambda(find_words)], weights=[0.5, 0.5]
    )
    assert len(QueryTransformRetriever(retriever=ensemble, k=4).invoke(QUESTION)) == 4
