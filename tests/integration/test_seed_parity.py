"""The older way of searching by transformed questions, written out plainly, finds what the parity config finds.

What is searched are the chunks of a real document, embedded by the real model. Both sides get the
same vectors and the very same replies, as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.kit.demo import load_dataset
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from tests.support.model_server import ModelServer
from tests.support.shared_data import SHARED

CONFIG: Final = Path(__file__).parents[2] / "config" / "seed-parity.config.json"
SIZE, OVERLAP = 1000, 200
PER_SUB_QUERY: Final = 2

Hits = list[dict[str, Any]]

# By the question's place in the file of questions, and then by what the model is asked for. One
# sub-query repeats it.
REPLIES: Final[Mapping[int, Mapping[str, str]]] = {
    0: {
        "rewrite": "What does 'Explainable AI' (XAI) mean, how does it make models clear, and why is it important?",
        "stepback": "How do transparency and trust matter for artificial intelligence?",
        "decompose": "1. What is 'Explainable AI'?\n2. Why is transparency of AI decisions important?\n"
        "3. How does explainability build trust?\n4. Which techniques explain a model's decisions?",
    },
    1: {
        "rewrite": "Can AI and machine learning models predict earthquakes from seismic data?",
        "stepback": "What natural events can artificial intelligence forecast?",
        "decompose": "1. Which data would AI need to predict earthquakes?\n2. How does AI monitor the environment?",
    },
    7: {
        "rewrite": "What is a 'cobot' (collaborative robot) and how does it work beside people?",
        "stepback": "How do robots and humans work together?",
        "decompose": "1. What is a 'cobot'?\n2. Where are collaborative robots used?",
    },
}

each_question: Final = pytest.mark.parametrize("at", REPLIES)


class PlainStore:
    """Vectors in a list; the nearest by cosine, equal ones in the order they were added. Passages have no ids."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Any, dict[str, Any]]] = []

    def add(self, text: str, vector: Any, metadata: dict[str, Any]) -> None:
        self.rows.append((text, vector, metadata))

    def similarity_search(self, query_embedding: Any, k: int = 5) -> Hits:
        found = [
            {"text": text, "metadata": metadata, "similarity": cosine(query_embedding, vector)}
            for text, vector, metadata in self.rows
        ]
        return sorted(found, key=lambda hit: hit["similarity"], reverse=True)[:k]


def cosine(one: Any, other: Any) -> float:
    import numpy as np

    return float(np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other)))


def chunk_text(text: str, size: int, overlap: int) -> list[str]:
    """Every *size* - *overlap* characters, *size* characters."""
    return [text[start : start + size] for start in range(0, len(text), size - overlap)]


def listed(reply: str) -> list[str]:
    """The lines of *reply* that begin with a number and a full stop, without these."""
    lines = [line.strip() for line in reply.strip().split("\n")]
    return [
        line.partition(".")[2].strip()
        for line in lines
        if line[:1] in "123456789" and line[1:2] == "."
    ]


@dataclass(frozen=True)
class World:
    """The document's chunks with their vectors, in a plain store, and every text's one vector."""

    store: PlainStore = field(repr=False)
    embed: Callable[[str], Any] = field(repr=False)
    questions: Sequence[str] = field(repr=False)

    def transformed_search(
        self, at: int, kind: str, top_k: int, per_sub_query: int = PER_SUB_QUERY
    ) -> Hits:
        """The plain procedure: the transformed question in place of the original; of sub-queries two passages each."""
        if kind == "none":
            return self.store.similarity_search(self.embed(self.questions[at]), top_k)
        reply = REPLIES[at][kind]
        if kind != "decompose":
            return self.store.similarity_search(self.embed(reply.strip()), top_k)
        lists = [
            self.store.similarity_search(self.embed(query), per_sub_query)
            for query in listed(reply)
        ]
        return best_by_text(chain.from_iterable(lists))[:top_k]

    def wrapped(self, kind: str, **fusion: Any) -> Any:
        """The function of a text with the parity config around it."""
        settings = json.loads(CONFIG.read_text(encoding="utf-8"))
        del settings["$schema"]
        limits = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}
        settings |= {"transformationType": kind, "limits": limits}
        settings["fusion"] |= fusion

        def script(prompt: Prompt) -> str:
            return REPLIES[self.questions.index(prompt.query)][prompt.mode]

        return qtm.QueryMiddleware(settings, client=ScriptedModel(script)).wrap(self.search)

    def search(self, query: str, top_k: int = 4) -> Hits:
        return self.store.similarity_search(self.embed(query), top_k)

    def lists(self, at: int, top_k: int) -> Iterator[dict[str, Any]]:
        """What every transformed question finds, one list after the other."""
        reply = REPLIES[at]
        texts = [reply["rewrite"], reply["stepback"], *listed(reply["decompose"])]
        return chain.from_iterable(self.search(text, top_k) for text in texts)


def best_by_text(hits: Iterable[dict[str, Any]]) -> Hits:
    """Each text once, with its best similarity, best first; equal ones as they first came."""
    kept: dict[str, dict[str, Any]] = {}
    for hit in hits:
        known = kept.get(hit["text"])
        if known is None or hit["similarity"] > known["similarity"]:
            kept[hit["text"]] = hit
    return sorted(kept.values(), key=lambda hit: hit["similarity"], reverse=True)


def document_and_questions() -> tuple[str, list[str]]:
    """A real document and what people asked of it, or the shipped passages and questions where it is not there."""
    if not SHARED.is_dir():
        data = load_dataset()
        return "\n".join(it.text for it in data.passages), [it.text for it in data.questions]
    text = (SHARED / "docs" / "AI_Information.txt").read_text(encoding="utf-8")
    entries = json.loads((SHARED / "docs" / "val.json").read_text(encoding="utf-8"))
    return text, [entry["question"] for entry in entries]


@pytest.fixture(scope="module")
def world() -> World:
    import numpy as np

    embedder = find_embedder("all-MiniLM-L6-v2")
    store = PlainStore()
    document, asked = document_and_questions()
    texts = chunk_text(document, SIZE, OVERLAP)
    for index, (text, vector) in enumerate(zip(texts, embedder.embed(texts), strict=True)):
        store.add(text, np.array(vector), {"index": index, "source": "document"})

    @cache
    def embed(text: str) -> Any:
        # One by one, as a vector's last bits depend on the texts beside it.
        return np.array(embedder.embed([text])[0])

    return World(store, embed, asked)


@each_question
@pytest.mark.parametrize("kind", ["none", "rewrite", "stepback"])
@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_one_transformed_question_finds_what_the_plain_procedure_finds(
    world: World, at: int, kind: str, top_k: int
) -> None:
    found = world.wrapped(kind)(world.questions[at], top_k=top_k)
    assert found == world.transformed_search(at, kind, top_k)


@each_question
@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_sub_queries_find_what_the_plain_procedure_finds(world: World, at: int, top_k: int) -> None:
    wrapped = world.wrapped("decompose", subQueryTopK=PER_SUB_QUERY)
    found = wrapped(world.questions[at], top_k=top_k)
    parity = world.transformed_search(at, "decompose", top_k)
    assert found[: len(parity)] == parity
    # Where these are fewer than were asked for, what the plain call gives fills up.
    known = {hit["text"] for hit in parity}
    plain = [
        hit["text"] for hit in world.search(world.questions[at], top_k) if hit["text"] not in known
    ]
    assert [hit["text"] for hit in found[len(parity) :]] == plain[: top_k - len(parity)]


@each_question
def test_sub_queries_bring_top_k_passages_each_where_nothing_else_is_said(
    world: World, at: int
) -> None:
    found = world.wrapped("decompose")(world.questions[at], top_k=5)
    assert found == world.transformed_search(at, "decompose", 5, per_sub_query=5)


@each_question
@pytest.mark.parametrize("top_k", [1, 10])
def test_all_transformations_find_the_best_of_all_their_lists(
    world: World, at: int, top_k: int
) -> None:
    found = world.wrapped("all")(world.questions[at], top_k=top_k)
    assert found == best_by_text(world.lists(at, top_k))[:top_k]


IMPACTS: Final = [
    "What are the impacts of climate change on biodiversity?",
    "How does climate change affect the oceans?",
    "What are the effects of climate change on agriculture?",
    "What are the impacts of climate change on human health?",
]


@pytest.mark.parametrize("kind", ["decompose", "combined"])
def test_the_aspects_of_a_broad_question_are_asked_for_and_all_searched(
    kind: str, model_server: ModelServer
) -> None:
    model_server.reply = {"sub_queries": IMPACTS}
    searched: list[str] = []

    def search(query: str, top_k: int = 4) -> Hits:
        searched.append(query)
        return [{"id": query, "score": 0.5, "text": query}][:top_k]

    config = {"transformationType": kind, "llm": {"subQueryStyle": "aspects"}}
    client = openai.OpenAI(base_url=model_server.url, api_key="none")
    wrapped = qtm.QueryMiddleware(config, client=client).wrap(search)
    found = wrapped.retrieve("What are the impacts of climate change on the environment?")
    assert [it.text for it in found.variants if it.kind == "sub_query"] == IMPACTS
    assert set(IMPACTS) <= set(searched)
    (asked,) = model_server.bodies
    assert "aspect" in asked["messages"][0]["content"]
    assert "asks for one thing" not in asked["messages"][0]["content"]
