"""Reranking by a model that Pinecone hosts: the real client over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pinecone import Pinecone

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.providers.rerankers import PineconeReranker
from tests.support.pinecone_world import PineconeWorld, pinecone_world, without_pauses

MODEL = "bge-reranker-v2-m3"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[PineconeWorld]:
    without_pauses(monkeypatch)
    with pinecone_world() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def reranker(world: PineconeWorld) -> PineconeReranker:
    return PineconeReranker(MODEL, client=world.client())


def test_scores_come_in_the_order_of_the_texts(
    world: PineconeWorld, reranker: PineconeReranker
) -> None:
    texts = ["nothing of it", "apple", "an apple pie"]
    assert reranker.rerank("apple pie", texts) == [0.0, 0.5, 1.0]
    (sent,) = world.sent("/rerank")
    assert sent["documents"] == [{"text": text} for text in texts]
    assert (sent["top_n"], sent["return_documents"], sent["parameters"]) == (
        3,
        False,
        {"truncate": "END"},
    )


@pytest.mark.parametrize(
    "places", [[], [0], [0, 0], [0, 7], [0, -1], [0, 1, 2], [0, 1, 1], [1, 0] * 50_000]
)
def test_an_answer_without_one_score_a_text_is_refused(
    world: PineconeWorld, reranker: PineconeReranker, places: list[int]
) -> None:
    body = {
        "model": MODEL,
        "usage": {"rerank_units": 1},
        "data": [{"index": at, "score": 0.5} for at in places],
    }
    world.answers("/rerank", 200, json.dumps(body), content_type="application/json")
    with pytest.raises(ModelError, match="one score per text"):
        reranker.rerank("apple", ["apple", "pear"])


def test_a_middleware_closes_the_client_it_made_and_no_other(
    world: PineconeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Pinecone] = []
    really = Pinecone.close
    monkeypatch.setattr(Pinecone, "close", lambda client: (closed.append(client), really(client)))

    def search(query: str, top_k: int = 2) -> list[dict[str, str]]:
        return [{"id": "a", "text": "apple"}, {"id": "b", "text": "banana"}]

    config = {"rerank": {"enabled": True, "model": MODEL}}
    for given_reranker, count in ((None, 1), (PineconeReranker(MODEL, client=world.client()), 0)):
        closed.clear()
        with qtm.QueryMiddleware(config, reranker=given_reranker) as qm:
            assert [row["id"] for row in qm.wrap(search)("banana")] == ["b", "a"]
            assert closed == []
        assert len(closed) == count


def test_without_a_key_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PINECONE_API_KEY", raising=False)
    with pytest.raises(ModelError, match="set PINECONE_API_KEY") as caught:
        PineconeReranker(MODEL).rerank("apple", ["apple"])
    assert caught.value.reason == "unauthorized"
