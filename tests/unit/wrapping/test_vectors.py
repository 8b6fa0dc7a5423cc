"""A function that takes a vector is asked with a text, which `embed=` turns into one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Lock
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import (
    PASSAGES,
    QUERY,
    REPLIES,
    Way,
    every_way,
    kinds,
    reasons,
    scripted,
    transforming,
)

SUBS = REPLIES["decompose"]["sub_queries"]


def vector(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0]))]


class Embedding:
    """A vector a text; counts its batches."""

    name = "lengths"
    dimension = 2

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.batches.append(list(texts))
        return [vector(text) for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.embed(texts)


class Nearest:
    """Searches by vector, in both ways; keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._lock = Lock()

    def plain(self, vector: list[float], top_k: int = 3) -> Any:
        with self._lock:
            self.asked.append(vector)
        rows = [
            {"id": name, "distance": abs(vector[0] - len(text)), "text": text}
            for name, text in PASSAGES.items()
        ]
        return sorted(rows, key=lambda row: row["distance"])[:top_k]

    async def awaited(self, vector: list[float], top_k: int = 3) -> Any:
        return self.plain(vector, top_k)


def retrieve(way: Way, embed: Any, config: Any) -> tuple[qtm.Retrieval, Nearest]:
    nearest = Nearest()
    qm = qtm.QueryMiddleware(config, client=ScriptedModel(scripted))
    option = "embed" if isinstance(embed, Embedding) else "embed_many"
    search = nearest.awaited if way.name == "async" else nearest.plain
    wrapped: Any = qm.wrap(search, **{option: embed})
    return way.retrieve(wrapped, QUERY), nearest


@every_way
@pytest.mark.parametrize("kind", ["function", "embedder", "coroutine function"])
def test_the_variants_are_embedded_in_one_batch(way: Way, kind: str) -> None:
    embedding = Embedding()
    given = {
        "function": embedding.embed,
        "embedder": embedding,
        "coroutine function": embedding.aembed,
    }[kind]
    retrieval, nearest = retrieve(way, given, transforming("decompose"))
    assert embedding.batches == [[QUERY], SUBS]
    assert sorted(nearest.asked) == sorted(vector(text) for text in (QUERY, *SUBS))
    assert kinds(retrieval) == ["original", "sub_query", "sub_query"]
    assert retrieval.status == "full"


@every_way
def test_an_embedding_that_fails_for_the_variants_leaves_the_original(way: Way) -> None:
    error = RuntimeError("no model")

    def embed(texts: Sequence[str]) -> Any:
        if QUERY not in texts:
            raise error
        return [vector(text) for text in texts]

    retrieval, nearest = retrieve(way, embed, transforming("decompose"))
    assert ("embed", "failed") in reasons(retrieval)
    assert nearest.asked == [vector(QUERY)]
    assert retrieval.response == retrieve(way, Embedding(), {})[0].response
    with pytest.raises(RuntimeError) as caught:
        retrieve(way, lambda texts: embed([]), {})
    assert caught.value is error


@pytest.mark.parametrize("config", ["off", {"keywordEvidence": False}])
def test_a_function_of_a_vector_gets_one_also_where_nothing_is_to_be_improved(config: Any) -> None:
    qm, nearest, embed = qtm.QueryMiddleware(config), Nearest(), Embedding().embed
    wanted = nearest.plain(vector(QUERY))
    wrapped: Any = qm.wrap(nearest.plain, embed_many=embed)
    awaited: Any = qm.wrap(nearest.awaited, embed_many=embed)
    assert wrapped(QUERY) == wrapped(vector(QUERY)) == asyncio.run(awaited(QUERY)) == wanted
