"""The own store: whichever it is, the same lines ingest into it, search it and answer from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings, StoreSettings
from qtmiddleware.errors import StoreError
from qtmiddleware.kit.index.retriever import open_retriever
from qtmiddleware.kit.stores import MemoryStore
from qtmiddleware.testing import ScriptedModel
from tests.support.pinecone_world import PineconeWorld, pinecone_world

DOCUMENTS = {
    "lamp.md": "# Lamp\n\nThe red lamp means that the battery is empty.",
    "brake.txt": "The front brake is adjusted with the small wheel at the lever.",
    "deep/rain.txt": "In rain the braking distance is twice as long as on a dry road.",
}
QUESTION = "What does the red lamp mean?"
IN_MEMORY = Settings(store=StoreSettings(kind="memory"))


def numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0, float(text.count("e"))] for text in texts]


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "documents"
    for name, text in DOCUMENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return {"dataPath": str(folder), "indexPath": str(tmp_path / "index.sqlite")}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        made.add_index("passages", dimension=384)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def on_pinecone(namespace: str) -> dict[str, Any]:
    return {"store": {"kind": "pinecone", "index": "passages", "namespace": namespace}}


@pytest.mark.parametrize(
    "kind",
    [{"store": "sqlite"}, on_pinecone("manual"), {"store": "sqlite", "hybrid": True}],
    ids=["sqlite", "pinecone", "hybrid"],
)
def test_the_same_lines_work_on_every_store(
    kind: dict[str, Any],
    config: dict[str, Any],
    world: PineconeWorld,
) -> None:
    config |= kind
    report = qtm.ingest(config=config)
    assert (report.documents, report.chunks, report.skipped) == (3, 3, ())
    with qtm.QueryMiddleware(config, client=ScriptedModel("The battery is empty [1].")) as qm:
        found = qm.retriever.retrieve(QUESTION, top_k=2)
        assert (len(found.matches), found.status) == (2, "full")
        best = found.matches[0]
        assert (best.id, best.metadata["source"]) == ("lamp.md#0", "lamp.md")
        assert best.text == DOCUMENTS["lamp.md"]
        others = {"source": {"$in": ["brake.txt", "deep/rain.txt"]}}
        matches = qm.retriever.retrieve(QUESTION, filter=others).matches
        assert {match.id for match in matches} == {"brake.txt#0", "deep/rain.txt#0"}
        answer = qm.retriever.answer(QUESTION)
        assert answer.text == "The battery is empty [1]."
        assert answer.citations[0].match.id == "lamp.md#0"
    assert qtm.ingest(config=config).unchanged == 3


def test_two_namespaces_with_one_index_path_are_kept_apart(
    config: dict[str, Any],
    world: PineconeWorld,
) -> None:
    for namespace in ("one", "two"):
        assert qtm.ingest(config=config | on_pinecone(namespace)).added == 3
    (Path(config["dataPath"]) / "brake.txt").unlink()
    for namespace in ("two", "one"):
        assert qtm.ingest(config=config | on_pinecone(namespace)).removed == 1
        assert len(world.stored("passages", namespace)) == 2


def test_without_an_index_it_says_how_to_make_one(config: dict[str, Any]) -> None:
    with qtm.QueryMiddleware(config) as qm, pytest.raises(StoreError, match="qtm ingest"):
        qm.retriever.answer(QUESTION)
    assert not Path(config["indexPath"]).exists()


async def number_later(texts: Sequence[str]) -> list[list[float]]:
    return numbers(texts)


class AwaitedEmbedder:
    name = "awaited"
    dimension = 3

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return numbers(texts)


@pytest.mark.parametrize("given", [numbers, number_later, AwaitedEmbedder()])
def test_any_function_of_texts_and_a_store_of_ones_own_will_do(
    given: Any,
    config: dict[str, Any],
) -> None:
    store = MemoryStore(embedding_model="numbers", dimension=3)
    assert qtm.ingest(config["dataPath"], store=store, embedder=given).chunks == 3
    with qtm.QueryMiddleware(store=store, embedder=given) as qm:
        assert len(qm.retriever(QUESTION, top_k=3)) == 3
    # A store that was given stays open, and an own one does not.
    assert store.count() == 3
    own = open_retriever(IN_MEMORY, embedder=given)
    own.close()
    with pytest.raises(StoreError, match="closed"):
        own.store.count()


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
    hybrid: bool,
    config: dict[str, Any],
) -> None:
    config["hybrid"] = hybrid
    embeddings = Embeddings()
    assert qtm.ingest(config=config, embedder=embeddings).chunks == 3
    assert embeddings.questions == []
    with qtm.QueryMiddleware(config, embedder=embeddings) as qm:
        assert qm.retriever.retrieve(QUESTION, top_k=3).matches[0].id == "lamp.md#0"
    assert embeddings.questions == [QUESTION]
    assert set(embeddings.passages) == {*DOCUMENTS.values(), "dimension"}
