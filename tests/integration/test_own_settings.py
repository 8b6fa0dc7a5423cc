"""Every option of the own store, of hybrid search, reranking and answers changes something that can be seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from threading import Event
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.config import Config
from qtmiddleware.config.settings import (
    AnswerSettings,
    HybridSettings,
    RerankSettings,
    StoreSettings,
)
from qtmiddleware.errors import QtMiddlewareError, StoreError
from qtmiddleware.kit.index.retriever import open_retriever
from qtmiddleware.kit.stores import MemoryStore
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.rerankers import make_reranker
from tests.support.model_server import ModelServer, Said
from tests.support.pinecone_world import PineconeWorld, pinecone_world
from tests.support.waiting import PATIENCE

TEXTS = [
    "the red lamp",
    "a red brake and a lamp",
    "rain on the road",
    "a lamp",
    "the wet road",
    "a dry brake",
]
QUESTION = "What does the red lamp mean and what is a brake?"
JINA = "jinaai/jina-reranker-v2-base-multilingual"
DIMENSION = 3


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 + len(text), 1.0 + text.count("a"), 1.0 + text.count("r")] for text in texts]


class Bench:
    """What is to be seen under some configuration, as plain data."""

    def __init__(self, world: PineconeWorld, server: ModelServer, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self._server = server
        self._answers = Event()
        server.reply = self._say

    def _say(self, body: dict[str, Any]) -> Said:
        if "query" in json.loads(body["messages"][-1]["content"]):
            return {"sub_queries": ["What is a red lamp?", "What is a brake?"]}
        self._answers.wait(PATIENCE)
        return "It is a lamp [1]."

    def documents(self, config: dict[str, Any]) -> Any:
        """How many searches a question of an index of documents takes."""
        clause = {"type": "embed", "field": "body", "query": "Is Jaco healthy?"}
        wrapped = qtm.QueryMiddleware({"hybrid": config}).wrap(lambda *, score_by, top_k=4: TEXTS)
        return wrapped.retrieve(score_by=[clause]).trace.searches

    def hybrid(self, config: dict[str, Any]) -> Any:
        """What a search finds, with its scores."""
        retriever = open_retriever(
            Config.load({"hybrid": config}).settings, store=filled(), embedder=embed
        )
        asked = "the red lamp" if retriever.query_embedder is None else embed(["the red lamp"])[0]
        return [(one["id"], round(one["score"], 6)) for one in retriever.search(asked)]

    def kind(self, config: dict[str, Any]) -> Any:
        """The class of the store that is opened."""
        settings = Config.load({"store": config, "indexPath": str(self._folder / "index")}).settings
        retriever = open_retriever(settings, embedder=embed)
        retriever.close()
        return type(retriever.store).__name__

    def price(self, config: dict[str, Any]) -> Any:
        """What the searches of one question cost."""
        wrapped = qtm.QueryMiddleware({"store": config}).wrap(lambda query, top_k=3: TEXTS[:top_k])
        return wrapped.retrieve(QUESTION).trace.read_cost_usd

    def pinecone(self, config: dict[str, Any]) -> Any:
        """Where a passage goes, with Pinecone."""
        settings = Config.load({"store": {"kind": "pinecone", **config}}).settings
        retriever = open_retriever(settings, embedder=embed)
        for index in self._world.app.indexes.values():
            index.namespaces.clear()
        seen = len(self._world.exchanges)
        with suppress(StoreError):
            retriever.store.write([(Passage("a", TEXTS[0]), embed(TEXTS[:1])[0])])
        retriever.close()
        sent = self._world.exchanges[seen:]
        return [(one.index, one.path, one.json) for one in sent if "upsert" in one.path]

    def rerank(self, config: dict[str, Any]) -> Any:
        """The order that a reranker leaves, and how many texts it was asked about."""
        asked: list[int] = []

        def longest_first(question: str, texts: Sequence[str]) -> list[int]:
            asked.append(len(texts))
            return [len(text) for text in texts]

        wrapped = qtm.QueryMiddleware({"rerank": config}, reranker=longest_first).wrap(
            lambda query, top_k=6: TEXTS[:top_k]
        )
        found = wrapped.retrieve(QUESTION)
        return asked, [match.text for match in found.matches], found.degradations

    def reranker(self, config: dict[str, Any]) -> Any:
        """The name of the reranker a configuration chooses, or that it may not."""
        try:
            settings = Config.load({"rerank": {"enabled": True, **config}}).settings
            return make_reranker(None, settings).name
        except QtMiddlewareError as error:
            return type(error)

    def answer(self, config: dict[str, Any]) -> Any:
        """What the model is asked for an answer, or why there is none."""
        self._server.bodies.clear()
        # The answer is late for every timeout that is set.
        self._answers.clear() if "timeoutMs" in config else self._answers.set()
        limits = {"llmTimeoutMs": 30_000, "deadlineMs": 30_000}
        whole = {"answer": config, "transformationType": "decompose", "limits": limits}
        with openai.OpenAI(api_key="k", base_url=self._server.url, max_retries=0) as client:
            qm = qtm.QueryMiddleware(whole, client=client, store=filled(), embedder=embed)
            try:
                qm.answer(QUESTION)
            except QtMiddlewareError as error:
                return str(error)
            finally:
                self._answers.set()
        return sorted(
            json.dumps({**body, "messages": body["messages"][1:]}) for body in self._server.bodies
        )

    def answer_unsure(self, config: dict[str, Any]) -> int:
        """How often the model is asked for an answer to a question that the passages do not match."""
        self._server.bodies.clear()
        self._answers.set()
        with openai.OpenAI(api_key="k", base_url=self._server.url, max_retries=0) as client:
            search = qtm.QueryMiddleware({"answer": config}, client=client).wrap(search_pools)
            for number in range(20):
                search.retrieve(f"Where is pool {number}?")
            with suppress(QtMiddlewareError):
                search.answer("Who painted Guernica?")
        return len(self._server.bodies)


def search_pools(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    best = 0.87 if "pool" in query else 0.13
    scores = [best - at * at / 1_870 for at in range(20)]
    rows = [{"id": str(at), "text": "A pool.", "score": score} for at, score in enumerate(scores)]
    return rows[:top_k]


def filled() -> MemoryStore:
    store = MemoryStore(embedding_model="embed", dimension=DIMENSION)
    store.write(
        zip(
            [Passage(str(at), text * 3) for at, text in enumerate(TEXTS)], embed(TEXTS), strict=True
        )
    )
    return store


DENSE = {"index": "dense"}
Case = tuple[Callable[[Bench, dict[str, Any]], Any], dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "hybrid.enabled": (Bench.hybrid, {"enabled": False}, {"enabled": True}),
    "hybrid.method": (Bench.hybrid, {"enabled": True}, {"enabled": True, "method": "rrf"}),
    "hybrid.vector_weight": (
        Bench.hybrid,
        {"enabled": True},
        {"enabled": True, "vectorWeight": 0.1},
    ),
    "hybrid.bm25_weight": (Bench.hybrid, {"enabled": True}, {"enabled": True, "bm25Weight": 0.9}),
    "hybrid.search_top_k": (Bench.hybrid, {"enabled": True}, {"enabled": True, "searchTopK": 2}),
    "hybrid.fusion_top_k": (
        Bench.hybrid,
        {"enabled": True, "searchTopK": 2},
        {"enabled": True, "searchTopK": 2, "fusionTopK": 2},
    ),
    "hybrid.text_fields": (Bench.documents, {}, {"textFields": ["body"]}),
    "store.kind": (Bench.kind, {"kind": "memory"}, {"kind": "sqlite"}),
    "store.index": (Bench.pinecone, DENSE, {"index": "other"}),
    "store.host": (Bench.pinecone, DENSE, {**DENSE, "host": "HOST/i/other"}),
    "store.namespace": (Bench.pinecone, DENSE, {**DENSE, "namespace": "n"}),
    "store.text_field": (Bench.pinecone, DENSE, {**DENSE, "textField": "body"}),
    "store.read_price": (Bench.price, {}, {"readPrice": 16}),
    "rerank.enabled": (Bench.rerank, {"enabled": False}, {"enabled": True}),
    "rerank.rerank_top_k": (Bench.rerank, {"enabled": True}, {"enabled": True, "rerankTopK": 2}),
    "rerank.model": (Bench.reranker, {}, {"model": "pinecone/bge-reranker-v2-m3"}),
    "rerank.trust_remote_code": (
        Bench.reranker,
        {"model": JINA},
        {"model": JINA, "trustRemoteCode": True},
    ),
    "answer.mode": (Bench.answer, {}, {"mode": "synthesis"}),
    "answer.max_tokens": (Bench.answer, {}, {"maxTokens": 7}),
    "answer.timeout_ms": (Bench.answer, {}, {"timeoutMs": 1}),
    "answer.context_chars": (Bench.answer, {}, {"contextChars": 100}),
    "answer.if_unsure": (Bench.answer_unsure, {}, {"ifUnsure": "decline"}),
}
GROUPS = {
    "hybrid": HybridSettings,
    "store": StoreSettings,
    "rerank": RerankSettings,
    "answer": AnswerSettings,
}


@pytest.fixture
def bench(
    model_server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    with pinecone_world() as world:
        for name in ("dense", "other"):
            world.add_index(name, dimension=DIMENSION)
        for name, value in world.environment.items():
            monkeypatch.setenv(name, value)
        yield Bench(world, model_server, tmp_path)


def test_every_option_is_looked_at() -> None:
    assert set(CASES) == {
        f"{group}.{field.name}" for group, cls in GROUPS.items() for field in fields(cls)
    }


@pytest.mark.parametrize("key", CASES)
def test_every_option_changes_something(bench: Bench, key: str) -> None:
    observe, plain, changed = CASES[key]
    here = {
        name: str(value).replace("HOST", bench._world.url)
        for name, value in changed.items()
        if "HOST" in str(value)
    }
    seen = observe(bench, plain)
    assert seen == observe(bench, plain)
    assert seen != observe(bench, {**changed, **here})
