"""What docs/frameworks.md shows for Haystack, run as it stands, with Haystack's own chat generator over HTTP; and saved by one process
and loaded by another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from haystack import Pipeline
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.components.joiners import DocumentJoiner
from haystack.utils import Secret
from pytest_httpserver import HTTPServer

from qtmiddleware.integrations.haystack import QueryTransformRetriever
from tests.support.haystack_world import (
    QUESTION,
    AsyncPipeline,
    WordEmbedder,
    by_words,
    make_store,
)
from tests.support.model_server import ModelServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/frameworks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python haystack\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REPLY = {
    "standalone": "What did Jaco eat last year?",
    "rewrite": "Jaco's food last year",
    "hyde": "He eats fish.",
}


@pytest.fixture
def server(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> ModelServer:
    """A service of models that Haystack's generator is told the address of, and whose key is in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    return ModelServer(httpserver, REPLY)


@pytest.mark.filterwarnings("ignore:Mutating attribute")  # by what joins, before 2.31
def test_every_block_of_the_page_runs(server: ModelServer) -> None:
    space: dict[str, Any] = {
        "document_store": make_store(),
        "embedder": WordEmbedder(),
        "chat_generator": OpenAIChatGenerator(api_base_url=server.url),
    }
    first, hybrid = BLOCKS
    first = first.replace("my_package", "tests")
    if AsyncPipeline is not Pipeline:
        first = re.sub(r", allowed_modules=\[.*\]", "", first)
    exec(compile(first, "docs/frameworks.md", "exec"), space)
    assert len(space["documents"]) == 4
    found = space["found"]
    assert found["status"] == "full"
    assert found["trace"]["input_tokens"] == server.usage["prompt_tokens"]
    assert server.keys[0] == "Bearer sk-of-the-environment"
    assert "OPENAI_API_KEY" in space["text"]
    assert "sk-of-the-environment" not in space["text"]
    inputs = {"retriever": {"query": "What did Jaco eat last year?"}}
    assert space["again"].run(inputs)["retriever"]["documents"][0].id == "food"
    exec(compile(hybrid, "docs/frameworks.md", "exec"), space)
    assert space["retriever"].run(QUESTION)["documents"][0].id == "health"


def test_what_sorts_behind_it_by_score_keeps_our_order_with_our_scores() -> None:
    def join(config: dict[str, Any]) -> str:
        pipeline = Pipeline()
        pipeline.add_component("retriever", QueryTransformRetriever(by_words(), config=config))
        pipeline.add_component("joiner", DocumentJoiner())
        pipeline.connect("retriever.documents", "joiner.documents")
        return str(pipeline.run({"retriever": {"query": QUESTION}})["joiner"]["documents"][0].id)

    assert (join({}), join({"scores": "fused"})) == ("toys", "health")


def test_a_key_that_is_given_as_it_is_goes_into_no_file() -> None:
    generator = OpenAIChatGenerator(api_key=Secret.from_token("sk-given"))
    pipeline = Pipeline()
    pipeline.add_component("retriever", QueryTransformRetriever(by_words(), client=generator))
    with pytest.raises(Exception, match=r"(?i)cannot serialize token-based secret") as caught:
        pipeline.dumps()
    assert "sk-given" not in str(caught.value)


SEARCHES = """
from haystack import Document

def search(query, top_k=4):
    texts = ["Cats sleep", "Jaco eats dry food", "Jaco has no health concerns", "The fee is due", "Dogs bark"]
    return [Document(id=str(n), content=text, score=0.9 - n / 10) for n, text in enumerate(texts)][:top_k]
"""
LOADING = """
import inspect
from haystack import Pipeline

allowed = {"allowed_modules": ["qtmiddleware", "my_searches"]} if "allowed_modules" in inspect.signature(
    Pipeline.loads).parameters else {}
text = open("pipeline.yaml").read()
pipeline = Pipeline.loads(text, **allowed)
found = pipeline.run({"retriever": {"query": "Does Jaco have any health concerns?"}})["retriever"]
print([it.id for it in found["documents"]], found["status"])

import my_searches

del my_searches.search
try:
    Pipeline.loads(text, **allowed)
except Exception as error:
    print(error)
"""


def test_another_process_loads_what_one_has_saved_and_names_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_searches.py").write_text(SEARCHES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    pipeline = Pipeline()
    searches = import_module("my_searches")
    pipeline.add_component(
        "retriever", QueryTransformRetriever(searches.search, config="rules", top_k=3)
    )
    (tmp_path / "pipeline.yaml").write_text(pipeline.dumps(), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-c", LOADING]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.startswith("['2', '1', '0'] full\n"), done.stderr
    assert "Could not find attribute 'search' in my_searches" in done.stdout
