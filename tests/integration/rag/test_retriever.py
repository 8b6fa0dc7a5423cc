"""The own store: whichever it is, the same lines ingest into it, search it and answer from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings, StoreSettings
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.embedding import OpenAIEmbedder
from qtmiddleware.kit.index.retriever import open_retriever
from qtmiddleware.kit.stores import MemoryStore, SQLiteStore
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.testing import ScriptedModel
from tests.support.embeddings_server import EmbeddingsServer
from tests.support.pinecone_world import PineconeWorld, pinecone_world

DOCUMENTS = {
    "lamp.md": "# Lamp\n\nThe red lamp means that the battery is empty.",
    "brake.txt": "The front brake is adjusted with the small wheel at the lever.",
    "deep/rain.txt": "In rain the braking distance is twice as long as on a dry road.",
}
QUESTION = "What does the red lamp mean?"
MINILM = 384


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    for name, text in DOCUMENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        made.add_index("passages", dimension=MINILM)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


KINDS: dict[str, dict[str, Any]] = {
    "sqlite": {"store": "sqlite"},
    "pinecone": {"store": {"kind": "pinecone", "index": "passages", "namespace": "manual"}},
    "sqlite, hybrid": {"store": "sqlite", "hybrid": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_lines_work_on_every_store(
    kind: str, documents: Path, tmp_path: Path, world: PineconeWorld
) -> None:
    config = {**KINDS[kind], "dataPath": str(documents), "indexPath": str(tmp_path / "index")}
    report = qtm.ingest(config=config)
    assert (report.documents, report.chunks, report.skipped) == (3, 3, ())
    with qtm.QueryMiddleware(config, client=ScriptedModel("The battery is empty [1].")) as qm:
        found = qm.retriever.retrieve(QUESTION, top_k=2)
        assert found.matches[0].id == "lamp.md#0"
        assert len(found.matches) == 2
        assert found.status == "full"
        assert found.matches[0].metadata["source"] == "lamp.md"
        assert found.matches[0].text == DOCUMENTS["lamp.md"]
        others = {"source": {"$in": ["brake.txt", "deep/rain.txt"]}}
        matches = qm.retriever.retrieve(QUESTION, filter=others).matches
        assert {match.id for match in matches} == {"brake.txt#0", "deep/rain.txt#0"}
        answer = qm.answer(QUESTION)
        assert (answer.text, answer.citations[0].match.id) == (
            "The battery is empty [1].",
            "lamp.md#0",
        )
    assert qtm.ingest(config=config).unchanged == 3


def test_without_an_index_it_says_how_to_make_one(tmp_path: Path) -> None:
    path = tmp_path / "nothing.sqlite"
    with (
        qtm.QueryMiddleware({"indexPath": str(path)}) as qm,
        pytest.raises(StoreError, match="qtm ingest"),
    ):
        qm.answer(QUESTION)
    assert not path.exists()


def numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0, float(text.count("e"))] for text in texts]


def test_another_embedding_model_than_the_indexs_is_an_error_with_both_names(
    documents: Path, tmp_path: Path
) -> None:
    config = {"dataPath": str(documents), "indexPath": str(tmp_path / "index.sqlite")}
    qtm.ingest(config=config, embedder=CallableEmbedder(numbers, name="lengths"))
    with (
        qtm.QueryMiddleware(config) as qm,
        pytest.raises(StoreError, match=r"lengths.*all-MiniLM-L6-v2"),
    ):
        qm.answer(QUESTION)


def test_a_function_of_texts_and_a_store_of_ones_own_will_do(documents: Path) -> None:
    store = MemoryStore(embedding_model="numbers", dimension=3)
    assert qtm.ingest(documents, store=store, embedder=numbers).chunks == 3
    with qtm.QueryMiddleware(store=store, embedder=numbers) as qm:
        assert len(qm.retriever(QUESTION, top_k=3)) == 3
    # A store that was given stays open.
    assert store.count() == 3


def test_top_k_of_the_config_is_what_a_search_returns(documents: Path, tmp_path: Path) -> None:
    config = {"dataPath": str(documents), "indexPath": str(tmp_path / "index.sqlite"), "topK": 1}
    qtm.ingest(config=config)
    with qtm.QueryMiddleware(config) as qm:
        assert len(qm.retriever(QUESTION)) == 1
    with qtm.QueryMiddleware({**config, "hybrid": {"enabled": True, "searchTopK": 2}}) as qm:
        assert len(qm.retriever(QUESTION)) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"indexPath": "x"},
        {"embeddingModel": "x"},
        {"store": "memory"},
        {"hybrid": True},
        {"embeddingDimensions": 3},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_is_opened_once_cannot_be_changed_by_one_call(changed: dict[str, Any]) -> None:
    wrapped = qtm.middleware(lambda query, top_k=1: [])
    with pytest.raises(ConfigError, match="cannot be set for one call"):
        wrapped.retrieve(QUESTION, config=changed)


@pytest.mark.parametrize("given", [42, "all-MiniLM-L6-v2"])
def test_what_cannot_embed_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="embedder"):
        open_retriever(Settings(store=StoreSettings(kind="memory")), embedder=given)


async def awaited_numbers(texts: Sequence[str]) -> list[list[float]]:
    return numbers(texts)


class AwaitedEmbedder:
    name = "awaited"
    dimension = 3

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return numbers(texts)


@pytest.mark.parametrize(
    "given", [awaited_numbers, AwaitedEmbedder(), CallableEmbedder(awaited_numbers)]
)
def test_an_async_embedder_serves_ingest_and_questions(given: Any, documents: Path) -> None:
    store = MemoryStore(embedding_model="numbers", dimension=3)
    assert qtm.ingest(documents, store=store, embedder=given).chunks == 3
    with qtm.QueryMiddleware(store=store, embedder=given) as qm:
        assert len(qm.retriever(QUESTION, top_k=3)) == 3


class Embeddings:
    """The methods of LangChain's, with vectors by which a question is near no passage but through its own method."""

    def __init__(self) -> None:
        self.passages: list[str] = []
        self.questions: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.passages += texts
        return numbers(texts)

    def embed_query(self, text: str) -> list[float]:
        self.questions.append(text)
        return numbers([DOCUMENTS["lamp.md"]])[0]


@pytest.mark.parametrize("hybrid", [False, True])
def test_passages_and_questions_are_embedded_each_by_their_own_method(
    hybrid: bool, documents: Path, tmp_path: Path
) -> None:
    config = {"hybrid": hybrid, "indexPath": str(tmp_path / "index"), "dataPath": str(documents)}
    embeddings = Embeddings()
    assert qtm.ingest(config=config, embedder=embeddings).chunks == 3
    assert set(DOCUMENTS.values()) <= set(embeddings.passages)
    assert embeddings.questions == []
    embedded = len(embeddings.passages)
    with qtm.QueryMiddleware(config, embedder=embeddings) as qm:
        assert qm.retriever.retrieve(QUESTION, top_k=3).matches[0].id == "lamp.md#0"
    assert embeddings.questions == [QUESTION]
    assert [text for text in embeddings.passages[embedded:] if text != "dimension"] == []


def test_a_given_store_is_not_closed_and_an_own_one_is(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "given.sqlite", embedding_model="numbers", dimension=3)
    open_retriever(Settings(), store=store, embedder=numbers).close()
    assert store.count() == 0
    retriever = open_retriever(
        Settings(index_path=str(tmp_path / "own.sqlite")),
        embedder=CallableEmbedder(numbers, dimension=3),
    )
    retriever.close()
    with pytest.raises(StoreError):
        retriever.store.count()


def test_an_embedders_connections_are_closed_with_the_kit_unless_it_was_given(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddingsServer(httpserver)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    closed: list[openai.OpenAI] = []
    really = openai.OpenAI.close
    monkeypatch.setattr(
        openai.OpenAI, "close", lambda client: (closed.append(client), really(client))
    )
    settings = Settings(store=StoreSettings(kind="memory"), embedding_model="openai/tiny")
    open_retriever(settings).close()
    assert len(closed) == 1
    given_embedder = OpenAIEmbedder("tiny", base_url=server.url)
    open_retriever(settings, embedder=given_embedder).close()
    assert len(closed) == 1
    given_embedder.close()


def test_two_namespaces_with_one_index_path_are_kept_apart(
    documents: Path, tmp_path: Path, world: PineconeWorld
) -> None:
    def config(namespace: str) -> dict[str, Any]:
        store = {"kind": "pinecone", "index": "passages", "namespace": namespace}
        return {"store": store, "dataPath": str(documents), "indexPath": str(tmp_path / "index")}

    for namespace in ("one", "two"):
        assert qtm.ingest(config=config(namespace)).added == 3
    (documents / "brake.txt").unlink()
    for namespace in ("two", "one"):
        assert (
            qtm.ingest(config=config(namespace)).removed,
            len(world.stored("passages", namespace)),
        ) == (1, 2)
