"""One call, made again with other texts, vectors and numbers."""

from __future__ import annotations

import asyncio
import inspect
import time
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
    ids,
    kinds,
    reasons,
    scripted,
    search,
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
@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_of_one_text_gets_each_text_once(way: Way, is_async: bool) -> None:
    asked: list[Any] = []

    def embed(text):  # type: ignore[no-untyped-def]
        asked.append(text)
        return vector(text)

    async def aembed(text):  # type: ignore[no-untyped-def]
        return embed(text)

    nearest = Nearest()
    qm = qtm.QueryMiddleware(transforming("decompose"), client=ScriptedModel(scripted))
    wrapped: Any = qm.wrap(
        nearest.awaited if way.name == "async" else nearest.plain,
        embed=aembed if is_async else embed,
    )
    assert asked == []
    first = way.retrieve(wrapped, QUERY)
    assert (first.status, sorted(nearest.asked)) == (
        "full",
        sorted(vector(text) for text in (QUERY, *SUBS)),
    )
    assert sorted(asked) == sorted([QUERY, *SUBS])
    asked.clear()
    assert way.retrieve(wrapped, QUERY).response == first.response
    assert sorted(asked) == sorted([QUERY, *SUBS])
    assert {type(number) for asked_vector in nearest.asked for number in asked_vector} == {float}


@every_way
def test_what_embeds_nothing_is_an_error_that_says_what_is_expected(way: Way) -> None:
    with pytest.raises(
        qtm.EmbeddingError,
        match="must return a vector of numbers per text, not NoneType",
    ):
        retrieved(way, lambda it: None, {})


@every_way
def test_the_time_of_embedding_is_a_stage_of_the_question_and_one_of_its_variants(way: Way) -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        time.sleep(0.02)
        return [vector(text) for text in texts]

    stages = retrieved(way, embed, transforming("decompose"))[0].trace.stages
    own, variants = sorted((it for it in stages if it.name == "embed"), key=lambda it: it.detail)
    (search,) = [it for it in stages if it.name == "search.original"]
    assert [it.detail for it in (own, variants)] == ["original", "variants"]
    assert min(own.ms, variants.ms) >= 20
    # The question's is part of its search, as it would be in a function of one's own.
    assert search.started_ms <= own.started_ms
    assert own.ms <= search.ms


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


@every_way
def test_distances_are_fused_the_right_way_round(way: Way) -> None:
    retrieval, _ = retrieved(
        way, Embedding(), transforming("decompose", keywordEvidence={"enabled": False}), top_k=8
    )
    found = ids(retrieval)
    distance = {match.id: match.score or 0.0 for match in retrieval.matches}
    assert distance[found[0]] < distance[found[-1]]
    fused = [match.fused_score or 0.0 for match in retrieval.matches]
    assert fused == sorted(fused, reverse=True)


# --- responses only the caller knows --------------------------------------------------------------


def write(_: Any, items: Sequence[Any]) -> Any:
    return items


@pytest.mark.parametrize("options", [{"read": list}, {"write": write}], ids=["read", "write"])
def test_reading_and_writing_belong_together(options: dict[str, Any]) -> None:
    with pytest.raises(qtm.WrapError, match="must be passed together"):
        Way("sync").wrap(**options)


@every_way
def test_an_own_response_that_cannot_be_read_comes_back_as_it_is(way: Way) -> None:
    page = object()
    searched = way.wrap(lambda query, top_k: page, read=lambda page: "text", write=write)
    retrieval = searched.retrieve(QUERY)
    assert retrieval.response is page
    assert reasons(retrieval) == [("response", "unreadable")]


# --- a set-up that nothing can be improved with ---------------------------------------------------

TEXTLESS: Final = {
    "ids": (["a-17", "b-18"], "neither a text nor metadata"),
    "pairs": ([("a-17", 0.9), ("b-18", 0.8)], "neither a text nor metadata"),
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
    "joined": ("Jaco is well\nCats sleep", "return the list"),
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


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_warning_that_is_made_an_error_costs_nobody_the_result(name: str) -> None:
    response, _ = UNUSABLE[name]
    searched = Way("sync").wrap(lambda query, top_k: response)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert searched.call(QUERY) == response


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


@every_way
def test_once_a_passage_held_a_text_more_of_them_are_fetched_for_good(way: Way) -> None:
    withheld = [True, True, False, True, False]

    def respond(query: str, top_k: int) -> Any:
        bare = withheld.pop(0)
        return [
            {"id": row["id"], "score": row["score"]} if bare else row
            for row in search(query, top_k)
        ]

    searched = way.wrap(respond)
    for _ in range(5):
        searched.retrieve(QUERY)
    assert [top_k for _, top_k in searched.calls] == [WIDE, 4, 4, WIDE, WIDE]


# --- asking the model alone -----------------------------------------------------------------------


async def test_an_asynchronous_embed_is_awaited_in_the_callers_loop_whatever_function_is_wrapped() -> (
    None
):
    loops: list[Any] = []

    async def embed(text: str) -> list[float]:
        loops.append(asyncio.get_running_loop())
        return [float(len(text)), 1.0]

    search = qtm.QueryMiddleware(transforming("decompose"), client=ScriptedModel(scripted)).wrap(
        lambda vector, top_k=1: [{"id": "a", "score": 0.5, "text": "one"}], embed=embed
    )
    retrieval = await search.aretrieve(QUERY)
    assert retrieval.status == "full"
    assert len(loops) == 3
    assert set(loops) == {asyncio.get_running_loop()}
