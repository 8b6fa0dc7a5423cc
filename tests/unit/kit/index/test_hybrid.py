"""Searching by vectors and by words at the same time."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from threading import Barrier, current_thread
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.config.settings import HybridSettings, PreprocessSettings
from qtmiddleware.errors import StoreError, WrapError
from qtmiddleware.kit.index.hybrid import Hybrid, search_store
from qtmiddleware.kit.stores import MemoryStore
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.embedding import CallableEmbedder

QUERY: Final = "Does Jaco have any health concerns?"
Rows = list[dict[str, Any]]


def hits(*rows: tuple[str, float | None]) -> Callable[..., Rows]:
    """A search that finds these passages, best first, whatever it is asked."""

    def search(_query: str, top_k: int) -> Rows:
        found = [{"id": id_, "text": f"text of {id_}", "metadata": {"n": 1}} for id_, _ in rows]
        scores = [{} if score is None else {"score": score} for _, score in rows]
        return [row | score for row, score in zip(found, scores, strict=True)][:top_k]

    return search


class Recorder:
    """A search that keeps what it was asked, and then does what *then* does."""

    def __init__(self, then: Callable[..., Any] = lambda query, top_k: []) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.then = then

    def __call__(self, query: str, top_k: int, **condition: Any) -> Any:
        self.asked.append((query, top_k, *condition.values()))
        return self.then(query, top_k)


def weighing(vector: float, bm25: float, **more: Any) -> HybridSettings:
    return HybridSettings(vector_weight=vector, bm25_weight=bm25, **more)


def ids(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [record["id"] for record in records]


WEIGHTED, RANKS = weighing(0.8, 0.2), weighing(0.75, 0.25, method="rrf")


@pytest.mark.parametrize(
    ("vectors", "words", "options", "scores"),
    [
        (
            [("a", 0.9), ("b", 0.8), ("c", 0.5)],
            [("d", 7.0), ("b", 4.0), ("a", 3.0)],
            WEIGHTED,
            {"a": 0.8, "b": 0.8 * 0.75 + 0.2 * 0.25, "d": 0.2, "c": 0.0},
        ),
        (
            [("a", 0.9), ("b", 0.8)],
            [("b", 7.0), ("c", 3.0)],
            RANKS,
            {"b": 0.75 / 12 + 0.25 / 11, "a": 0.75 / 11, "c": 0.25 / 12},
        ),
        # Lists without scores are fused by rank.
        (
            [("a", None), ("b", None)],
            [("b", 3.0)],
            WEIGHTED,
            {"b": 0.8 / 12 + 0.2 / 11, "a": 0.8 / 11},
        ),
    ],
    ids=["weighted", "rrf", "no scores"],
)
def test_scores_are_weighted_sums_of_scaled_scores_or_of_ranks(
    vectors: Any, words: Any, options: HybridSettings, scores: dict[str, float]
) -> None:
    found = Hybrid(hits(*vectors), hits(*words), options=options, rrf_k=10)("q")
    assert ids(found) == list(scores)
    assert [record["score"] for record in found] == pytest.approx(list(scores.values()))


def test_two_indexes_of_different_answers_are_one_search_and_fill_each_others_gaps() -> None:
    def dense(query: str, top_k: int) -> dict[str, Any]:
        first = {"id": "a", "score": 0.9, "metadata": {"text": "one"}}
        return {"matches": [first, {"id": "b", "score": 0.2, "metadata": {}}], "namespace": "docs"}

    def sparse(query: str, top_k: int) -> dict[str, Any]:
        hit = {"_id": "b", "_score": 8.0, "fields": {"text": "two"}}
        return {"result": {"hits": [hit]}, "namespace": "docs"}

    found = Hybrid(dense, sparse, options=WEIGHTED)("q")
    shown = [(record["id"], record["score"], record["text"]) for record in found]
    assert shown == [("a", 0.8, "one"), ("b", 0.2, "two")]


SCORED: Final = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False),
    max_size=8,
)


@given(vectors=SCORED, words=SCORED, share=st.floats(0.01, 0.99), top_k=st.integers(1, 10))
@pytest.mark.parametrize(("method", "highest"), [("weighted", 1.0), ("rrf", 1.0 / 61)])
def test_any_two_lists_give_their_passages_once_best_first_within_the_promised_range(
    vectors: dict[str, float],
    words: dict[str, float],
    share: float,
    top_k: int,
    method: str,
    highest: float,
) -> None:
    options = weighing(share, 1.0 - share, method=method)
    legs = [hits(*sorted(leg.items(), key=lambda one: -one[1])) for leg in (vectors, words)]
    found = Hybrid(*legs, options=options)("q", top_k)
    assert len(found) == len(set(ids(found))) == min(top_k, len(vectors.keys() | words.keys()))
    scores = [record["score"] for record in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0.0 <= score <= highest + 1e-9 for score in scores)


def test_the_vector_search_gets_the_question_and_the_word_search_its_keywords() -> None:
    vectors, words = Recorder(), Recorder()
    search = Hybrid(vectors, words)
    assert search(QUERY) == []
    search("What is it?", 80, filter={"page": 3})
    Hybrid(vectors, words, preprocess=PreprocessSettings(enabled=False))(QUERY)
    Hybrid(vectors, words, preprocess=PreprocessSettings(keep_words=("any",)))(QUERY)
    assert vectors.asked == [
        *((QUERY, 50), ("What is it?", 80, {"page": 3}), (QUERY, 50), (QUERY, 50))
    ]
    assert words.asked == [
        *(("jaco health concerns", 50), ("it", 80, {"page": 3}), (QUERY, 50)),
        ("jaco any health concerns", 50),
    ]


def test_a_call_without_top_k_gives_search_top_k_passages_and_the_signature_says_so() -> None:
    many = hits(*((f"{number:03}", 1.0 - number / 100) for number in range(60)))
    search = Hybrid(many, many, options=HybridSettings(search_top_k=7))
    assert [len(search("q")), len(search("q", 60)), len(search("q", 0))] == [7, 60, 0]
    assert inspect.signature(search).parameters["top_k"].default == 7


def test_both_searches_run_at_the_same_time_and_in_the_callers_context() -> None:
    together, who = Barrier(2, timeout=30), ContextVar[str]("who")
    seen: list[tuple[str, bool]] = []

    def leg(_query: str, _top_k: int) -> list[Any]:
        together.wait()
        seen.append((who.get(), current_thread().daemon))
        return []

    who.set("caller")
    Hybrid(leg, leg)("q")
    assert sorted(seen) == [("caller", current_thread().daemon), ("caller", True)]


def raising(error: BaseException) -> Callable[..., Any]:
    def search(_query: str, _top_k: int) -> Any:
        raise error

    return search


@pytest.mark.parametrize(
    ("vectors", "words"),
    [(raising(KeyError("down")), hits()), (hits(("a", 0.9)), raising(SystemExit(3)))],
)
def test_what_the_vector_search_raises_and_an_exit_of_the_word_search_pass_through(
    vectors: Any, words: Any
) -> None:
    with pytest.raises((KeyError, SystemExit)):
        Hybrid(vectors, words)("q")


@pytest.mark.parametrize(
    "broken", [raising(ConnectionError("secret")), lambda query, top_k: 42], ids=["raises", "odd"]
)
def test_without_the_word_search_vectors_stand_alone_and_one_warning_comes(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    search = Hybrid(hits(("a", 0.9), ("b", 0.8)), broken)
    with caplog.at_level(logging.INFO, "qtmiddleware"):
        found = search("a secret question")
        assert search("another one") == found
    assert [(record["id"], record["bm25_score"]) for record in found] == [("a", None), ("b", None)]
    (line,) = caplog.messages
    assert "the keyword search failed, so only" in line
    assert "secret" not in line


def test_a_search_of_weight_0_is_not_run() -> None:
    both, never = hits(("a", 0.9), ("b", 0.4)), raising(AssertionError())
    assert ids(Hybrid(both, never, options=weighing(1.0, 0.0))("q")) == ["a", "b"]
    found = Hybrid(never, both, options=weighing(0.0, 0.3))("q")
    shown = [(record["score"], record["vector_score"], record["bm25_score"]) for record in found]
    assert shown == [(1.0, None, 0.9), (0.0, None, 0.4)]


async def search_later(_query: str, _top_k: int) -> list[Any]:
    return []


def test_async_functions_are_refused() -> None:
    with pytest.raises(WrapError, match="async"):
        Hybrid(search_later, hits())


def test_the_middleware_wraps_it_and_asks_for_more_candidates() -> None:
    vectors = Recorder(hits(("a", 0.9), ("b", 0.8), ("c", 0.5)))
    config = {"transformationType": "none", "keywordEvidence": {"candidates": 70}}
    search = qtm.QueryMiddleware(config).wrap(Hybrid(vectors, hits(("b", 7.0), ("c", 3.0))))
    found = search.retrieve(QUERY, top_k=2)
    assert vectors.asked == [(QUERY, 70)]
    assert len(found.response) == 2
    assert {"vector_score", "bm25_score"} <= found.response[0].keys()


# --- a store ---------------------------------------------------------------------------------------

PASSAGES: Final = {
    "health": ("Jaco has no health concerns", [0.6, 0.8, 0.0]),
    "food": ("Jaco eats dry food twice a day", [0.0, 1.0, 0.0]),
    "vet": ("The vet checks hips heart and teeth", [1.0, 0.0, 0.0]),
}
EMBEDDER: Final = CallableEmbedder(
    lambda texts: [[1.0, 0.1, 0.0] for _ in texts], takes_list=True, dimension=3
)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore(dimension=3) as made:
        made.write((Passage(id_, text), vector) for id_, (text, vector) in PASSAGES.items())
        yield made


def search_both(store: Any, vector: float, bm25: float) -> Hybrid:
    options, rules = weighing(vector, bm25), PreprocessSettings()
    return search_store(store, EMBEDDER, options=options, rrf_k=60, preprocess=rules)


def test_a_store_is_searched_by_both(store: MemoryStore) -> None:
    assert ids(search_both(store, 0.5, 0.5)(QUERY))[0] == "health"
    assert ids(search_both(store, 1.0, 0.0)(QUERY)) == ids(store.search([1.0, 0.1, 0.0], 10))
    words = store.keyword_search("jaco health concerns", 10)
    assert ids(search_both(store, 0.0, 1.0)(QUERY)) == ids(words)


class Wordless:
    """A store without a word search."""

    identity = "wordless"

    def write(self, passages: Any, *, delete: Sequence[str] = ()) -> None: ...
    def search(self, query: Any, top_k: int, *, filter: Any = None) -> Rows:  # noqa: A002
        return hits(("a", 0.9))("", top_k)

    def count(self) -> int:
        return 1

    def close(self) -> None: ...


def test_a_store_without_a_word_search_is_refused_unless_words_count_nothing() -> None:
    with pytest.raises(StoreError, match="Wordless has no keyword search"):
        search_both(Wordless(), 0.5, 0.5)
    assert ids(search_both(Wordless(), 1.0, 0.0)("q")) == ["a"]
