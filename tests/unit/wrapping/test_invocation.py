"""One call, made again with other texts, vectors and numbers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import (
    PASSAGES,
    QUERY,
    REPLIES,
    WIDE,
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
        self._lock = Lock()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        with self._lock:
            self.batches.append(list(texts))
        return [vector(text) for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.embed(texts)


class Nearest:
    """Searches by vector, in both ways; keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._lock = Lock()

    def rows(self, wanted: Any, top_k: int) -> Any:
        with self._lock:
            self.asked.append(wanted)
        rows = [
            {"id": name, "distance": abs(wanted[0] - len(text)), "text": text}
            for name, text in PASSAGES.items()
        ]
        return sorted(rows, key=lambda row: row["distance"])[:top_k]

    def plain(self, vector: list[float], top_k: int = 3) -> Any:
        return self.rows(vector, top_k)

    async def awaited(self, vector: list[float], top_k: int = 3) -> Any:
        return self.rows(vector, top_k)


def retrieved(way: Way, embed: Any, config: Any, **options: Any) -> tuple[qtm.Retrieval, Nearest]:
    nearest = Nearest()
    qm = qtm.QueryMiddleware(config, client=ScriptedModel(scripted))
    wrapped: Any = qm.wrap(nearest.awaited if way.name == "async" else nearest.plain, embed=embed)
    return way.retrieve(wrapped, QUERY, **options), nearest


@every_way
@pytest.mark.parametrize("kind", ["function", "embedder", "coroutine function"])
def test_the_variants_are_embedded_in_one_batch(way: Way, kind: str) -> None:
    embedding = Embedding()
    given = {
        "function": embedding.embed,
        "embedder": embedding,
        "coroutine function": embedding.aembed,
    }[kind]
    retrieval, nearest = retrieved(way, given, transforming("decompose"))
    assert embedding.batches == [[QUERY], SUBS]
    assert sorted(nearest.asked) == sorted(vector(text) for text in (QUERY, *SUBS))
    assert kinds(retrieval) == ["original", "sub_query", "sub_query"]
    assert retrieval.status == "full"


@every_way
def test_an_embedding_that_fails_for_the_original_is_raised_as_it_is(way: Way) -> None:
    error = RuntimeError("no model")

    def embed(texts: Sequence[str]) -> Any:
        raise error

    with pytest.raises(RuntimeError) as caught:
        retrieved(way, embed, {})
    assert caught.value is error


@every_way
def test_an_embedding_that_fails_for_the_variants_leaves_the_original(way: Way) -> None:
    def embed(texts: Sequence[str]) -> Any:
        if QUERY not in texts:
            raise RuntimeError
        return [vector(text) for text in texts]

    retrieval, nearest = retrieved(way, embed, transforming("decompose"))
    assert ("embed", "failed") in reasons(retrieval)
    assert nearest.asked == [vector(QUERY)]
    assert retrieval.response == retrieved(way, Embedding(), {})[0].response


# --- responses only the caller knows --------------------------------------------------------------


# --- a set-up that nothing can be improved with ---------------------------------------------------

TEXTLESS: Final = {
    "ids": (["a-17", "b-18"], "neither a text nor metadata"),
    "no metadata": (
        [{"id": "a", "score": 0.9}, {"id": "b", "score": 0.8}],
        "include_metadata=True",
    ),
    "another field": (
        [
            {"id": "a", "score": 0.9, "metadata": {"blurb": "Jaco is well"}},
            {"id": "b", "score": 0.8},
        ],
        '"text": "blurb"',
    ),
}
UNREADABLE: Final = {
    "unknown": ({"answer": {"rows": []}}, "read= (response -> list of items)"),
}
UNUSABLE: Final = TEXTLESS | UNREADABLE


@every_way
@pytest.mark.parametrize("name", UNUSABLE)
def test_a_function_whose_results_cannot_be_improved_is_warned_of_once_at_the_users_line(
    name: str, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    response, advice = UNUSABLE[name]
    searched = way.wrap(lambda query, top_k: response)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        searched.call(QUERY)
        searched.call(QUERY)
        searched.retrieve(QUERY)
    assert [it.category for it in told] == [qtm.SetupWarning]
    assert advice in str(told[0].message)
    assert QUERY not in str(told[0].message)
    assert told[0].filename == inspect.getsourcefile(Way)
    assert [it.message for it in caplog.records if "degraded" not in it.message] == [
        str(told[0].message)
    ]


@every_way
@pytest.mark.parametrize("name", TEXTLESS)
def test_passages_without_a_text_are_fetched_once_and_not_on_every_call(
    name: str, way: Way
) -> None:
    response, _ = TEXTLESS[name]
    searched = way.wrap(lambda query, top_k: response)
    for _ in range(3):
        searched.retrieve(QUERY, top_k=2)
    assert [top_k for _, top_k in searched.calls] == [WIDE, 2, 2]


# --- asking the model alone -----------------------------------------------------------------------
