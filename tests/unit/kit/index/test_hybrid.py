"""Searching by vectors and by words at the same time."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from threading import Barrier, Event, Lock, current_thread
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.config.settings import HybridSettings, PreprocessSettings
from qtmiddleware.errors import ConfigError, StoreError, WrapError
from qtmiddleware.kit.index.hybrid import Hybrid, HybridSearch
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.testing import ScriptedModel

QUERY: Final = "Does Jaco have any health concerns?"
PASSAGES: Final = {
    "health": "Jaco has no health concerns",
    "food": "Jaco eats dry food twice a day",
    "vet": "The vet checks hips heart and teeth",
    "walks": "We go out at eight and at six",
}
VECTORS: Final = {
    "health": [0.6, 0.8, 0.0],
    "food": [0.0, 1.0, 0.0],
    "vet": [1.0, 0.0, 0.0],
    "walks": [0.0, 0.0, 1.0],
}


def hits(scores: Mapping[str, float]) -> Callable[..., list[dict[str, Any]]]:
    """A search that finds these passages, best first, whatever it is asked."""

    def search(_query: str, top_k: int) -> list[dict[str, Any]]:
        return [
            {"id": id_, "score": score, "text": f"text of {id_}", "metadata": {"n": 1}}
            for id_, score in scores.items()
        ][:top_k]

    return search


def weighing(vector: float, bm25: float, **more: Any) -> HybridSettings:
    return HybridSettings(vector_weight=vector, bm25_weight=bm25, **more)


def ids(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [record["id"] for record in records]


@pytest.fixture
def store() -> Iterator[SQLiteStore]:
    with SQLiteStore(":memory:", embedding_model="by hand", dimension=3) as store:
        store.write(
            zip(
                [Passage(id_, text, {"id": id_}) for id_, text in PASSAGES.items()],
                list(VECTORS.values()),
                strict=True,
            )
        )
        yield store


def by_hand(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0, 0.1, 0.0] for _ in texts]


EMBEDDER: Final = CallableEmbedder(by_hand, dimension=3)


def test_scores_are_the_weighted_sum_of_both_lists_each_brought_to_0_to_1() -> None:
    search = Hybrid(
        hits({"a": 0.9, "b": 0.8, "c": 0.5}),
        hits({"d": 7.0, "b": 4.0, "a": 3.0}),
        options=weighing(0.8, 0.2),
    )
    found = {record["id"]: record["score"] for record in search("q")}
    assert found == {
        "a": pytest.approx(0.8 * 1.0 + 0.2 * 0.0),
        "b": pytest.approx(0.8 * 0.75 + 0.2 * 0.25),
        "d": pytest.approx(0.2 * 1.0),
        "c": 0.0,
    }
    assert list(found) == ["a", "b", "d", "c"]


def test_by_rank_scores_are_weights_over_k_plus_rank() -> None:
    options = weighing(0.75, 0.25, method="rrf")
    search = Hybrid(
        hits({"a": 0.9, "b": 0.8}), hits({"b": 7.0, "c": 3.0}), options=options, rrf_k=10
    )
    found = search("q")
    assert [(record["id"], record["score"]) for record in found] == [
        ("b", pytest.approx(0.75 / 12 + 0.25 / 11)),
        ("a", pytest.approx(0.75 / 11)),
        ("c", pytest.approx(0.25 / 12)),
    ]


def test_records_are_those_of_a_store_with_both_searches_own_scores_beside() -> None:
    found = Hybrid(
        hits({"a": 0.9, "b": 0.8}), hits({"b": 7.0, "c": 3.0}), options=weighing(0.8, 0.2)
    )("q")
    assert found[0] == {
        "id": "a",
        "score": 0.8,
        "text": "text of a",
        "metadata": {"n": 1},
        "vector_score": 0.9,
        "bm25_score": None,
    }
    beside = {record["id"]: (record["vector_score"], record["bm25_score"]) for record in found}
    assert beside == {"a": (0.9, None), "b": (0.8, 7.0), "c": (None, 3.0)}


def test_distances_count_from_the_nearest() -> None:
    search = Hybrid(
        hits({"near": 0.1, "far": 0.9}), hits({"far": 2.0, "near": 1.0}), options=weighing(0.8, 0.2)
    )
    assert [(record["id"], record["score"]) for record in search("q")] == [
        ("near", 0.8),
        ("far", 0.2),
    ]


def test_lists_without_scores_are_fused_by_rank() -> None:
    def unscored(_query: str, _top_k: int) -> list[dict[str, Any]]:
        return [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]

    found = Hybrid(unscored, hits({"b": 3.0}), options=weighing(0.8, 0.2), rrf_k=10)("q")
    assert [(record["id"], record["score"]) for record in found] == [
        ("b", pytest.approx(0.8 / 12 + 0.2 / 11)),
        ("a", pytest.approx(0.8 / 11)),
    ]


def test_a_passage_twice_in_a_list_has_one_vote() -> None:
    def double(_query: str, _top_k: int) -> list[dict[str, Any]]:
        return [{"id": "a", "score": 3.0}, {"id": "a", "score": 2.0}, {"id": "b", "score": 1.0}]

    found = Hybrid(double, hits({"b": 1.0}), options=weighing(0.8, 0.2))("q")
    assert [(record["id"], record["score"]) for record in found] == [("a", 0.8), ("b", 0.2)]


SCORED: Final = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False),
    max_size=8,
)


@given(
    vectors=SCORED,
    words=SCORED,
    share=st.floats(0.01, 0.99),
    top_k=st.integers(1, 10),
    by_rank=st.booleans(),
)
def test_any_two_lists_give_their_passages_once_best_first_within_the_promised_range(
    vectors: dict[str, float], words: dict[str, float], share: float, top_k: int, by_rank: bool
) -> None:
    options = weighing(share, 1.0 - share, method="rrf" if by_rank else "weighted")
    legs = [hits(dict(sorted(leg.items(), key=lambda one: -one[1]))) for leg in (vectors, words)]
    found = Hybrid(*legs, options=options)("q", top_k)
    assert len(found) == min(top_k, len(vectors.keys() | words.keys()))
    assert len(set(ids(found))) == len(found)
    assert set(ids(found)) <= vectors.keys() | words.keys()
    scores = [record["score"] for record in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0.0 <= score <= (1.0 / 61 if by_rank else 1.0) + 1e-9 for score in scores)


def test_the_vector_search_gets_the_question_and_the_word_search_its_keywords() -> None:
    asked: dict[str, tuple[str, int]] = {}

    def vectors(query: str, top_k: int) -> list[Any]:
        asked["vectors"] = query, top_k
        return []

    def words(query: str, top_k: int) -> list[Any]:
        asked["words"] = query, top_k
        return []

    search = Hybrid(vectors, words)
    assert search(QUERY) == []
    assert asked == {"vectors": (QUERY, 50), "words": ("jaco health concerns", 50)}
    search("What is it?", 80)
    assert asked == {"vectors": ("What is it?", 80), "words": ("it", 80)}
    Hybrid(vectors, words, preprocess=PreprocessSettings(enabled=False))(QUERY)
    assert asked["words"] == (QUERY, 50)
    Hybrid(vectors, words, preprocess=PreprocessSettings(keep_words=("any",)))(QUERY)
    assert asked["words"] == ("jaco any health concerns", 50)


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


def test_a_call_without_top_k_gives_search_top_k_passages_and_the_signature_says_so() -> None:
    many = hits({f"{number:03}": 1.0 - number / 100 for number in range(60)})
    search = Hybrid(many, many, options=HybridSettings(search_top_k=7))
    assert len(search("q")) == 7
    assert inspect.signature(search).parameters["top_k"].default == 7
    assert len(search("q", 60)) == 60
    assert search("q", 0) == []


def test_a_filter_reaches_both_searches_and_is_not_passed_where_none_is_given() -> None:
    seen: list[dict[str, Any]] = []

    def leg(_query: str, _top_k: int, **condition: Any) -> list[Any]:
        seen.append(condition)
        return []

    Hybrid(leg, leg)("q", filter={"page": 3})
    Hybrid(leg, leg)("q")
    assert seen == [{"filter": {"page": 3}}] * 2 + [{}] * 2


def test_what_the_vector_search_raises_passes_through() -> None:
    class Down(Exception):
        pass

    def down(_query: str, _top_k: int) -> list[Any]:
        raise Down

    with pytest.raises(Down):
        Hybrid(down, hits({"a": 1.0}))("q")


@pytest.mark.parametrize("answer", [ConnectionError("secret"), 42], ids=["raises", "unreadable"])
def test_without_the_word_search_vectors_stand_alone_and_a_warning_comes_once(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_query: str, _top_k: int) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    search = Hybrid(hits({"a": 0.9, "b": 0.8}), broken)
    with caplog.at_level(logging.INFO, "qtmiddleware"):
        for _ in range(3):
            found = search("a secret question")
    assert [(record["id"], record["bm25_score"]) for record in found] == [("a", None), ("b", None)]
    (line,) = caplog.messages
    assert "word search failed" in line
    assert "secret" not in line


def test_the_time_of_embedding_within_a_hybrid_search_is_a_stage_too(store: Any) -> None:
    class Slow:
        name, dimension = "slow", 3

        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            time.sleep(0.02)
            return [[0.6, 0.8, 0.0] for _ in texts]

    qm = qtm.QueryMiddleware(
        {"transformationType": "rewrite"}, client=ScriptedModel({"rewrite": "illness of Jaco"})
    )
    stages = qm.wrap(HybridSearch(store, Slow())).retrieve(QUERY).trace.stages
    embeds = [it for it in stages if it.name == "embed"]
    assert sorted(it.detail for it in embeds) == ["original", "variants"]
    assert min(it.ms for it in embeds) >= 20


def test_a_word_search_that_hangs_is_left_behind() -> None:
    over = Event()

    def hanging(_query: str, _top_k: int) -> list[Any]:
        over.wait(30)
        return []

    try:
        assert ids(Hybrid(hits({"a": 0.9}), hanging, patience=0.05)("q")) == ["a"]
    finally:
        over.set()


def test_an_exit_inside_the_word_search_is_not_swallowed() -> None:
    def leaving(_query: str, _top_k: int) -> list[Any]:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        Hybrid(hits({"a": 0.9}), leaving)("q")


def test_a_search_of_weight_0_is_not_run() -> None:
    def never(_query: str, _top_k: int) -> list[Any]:
        raise AssertionError

    both = {"a": 0.9, "b": 0.4}
    assert ids(Hybrid(hits(both), never, options=weighing(1.0, 0.0))("q")) == ["a", "b"]
    found = Hybrid(never, hits(both), options=weighing(0.0, 0.3))("q")
    assert [
        (record["score"], record["vector_score"], record["bm25_score"]) for record in found
    ] == [
        (1.0, None, 0.9),
        (0.0, None, 0.4),
    ]


def test_two_weights_of_0_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match="both 0") as caught:
        Hybrid(hits({}), hits({}), options=weighing(0.0, 0.0))
    assert caught.value.path == "hybrid.vectorWeight"


def test_async_functions_are_refused() -> None:
    async def search(_query: str, _top_k: int) -> list[Any]:
        return []

    with pytest.raises(WrapError, match="async"):
        Hybrid(search, hits({}))


def test_two_indexes_of_different_answers_are_one_search_and_fill_each_others_gaps() -> None:
    def dense(query: str, top_k: int) -> dict[str, Any]:
        matches = [
            {"id": "a", "score": 0.9, "metadata": {"text": "one"}},
            {"id": "b", "score": 0.2, "metadata": {}},
        ]
        return {"matches": matches[:top_k], "namespace": "docs"}

    def sparse(query: str, top_k: int) -> dict[str, Any]:
        hits = [{"_id": "b", "_score": 8.0, "fields": {"text": "two"}}]
        return {"result": {"hits": hits[:top_k]}, "namespace": "docs"}

    found = Hybrid(dense, sparse, options=weighing(0.8, 0.2))("q")
    assert [(record["id"], record["score"], record["text"]) for record in found] == [
        ("a", 0.8, "one"),
        ("b", 0.2, "two"),
    ]


def test_the_middleware_wraps_it_and_asks_for_more_candidates() -> None:
    widths: list[int] = []

    def vectors(query: str, top_k: int) -> list[dict[str, Any]]:
        widths.append(top_k)
        return hits({"a": 0.9, "b": 0.8, "c": 0.5})(query, top_k)

    search = qtm.QueryMiddleware(
        {"transformationType": "none", "keywordEvidence": {"candidates": 70}}
    ).wrap(Hybrid(vectors, hits({"b": 7.0, "c": 3.0})))
    found = search.retrieve(QUERY, top_k=2)
    assert widths == [70]
    assert len(found.response) == 2
    assert {"vector_score", "bm25_score"} <= found.response[0].keys()
    assert found.original_query == QUERY


def test_a_store_is_searched_by_both(store: SQLiteStore) -> None:
    found = HybridSearch(store, EMBEDDER, options=weighing(0.5, 0.5))(QUERY)
    assert ids(found)[0] == "health"
    assert found[0]["text"] == PASSAGES["health"]
    assert found[0]["metadata"] == {"id": "health"}
    assert ids(HybridSearch(store, EMBEDDER, options=weighing(1.0, 0.0))(QUERY)) == ids(
        store.search([1.0, 0.1, 0.0], 10)
    )
    words = HybridSearch(store, None, options=weighing(0.0, 1.0))(QUERY)
    assert ids(words) == ids(store.keyword_search("jaco health concerns", 10))


class Wordless:
    """A store without a word search."""

    embeds, atomic, identity = False, True, "wordless"

    def write(self, passages: Any, *, delete: Sequence[str] = ()) -> None: ...
    def search(self, query: Any, top_k: int, *, filter: Any = None) -> list[dict[str, Any]]:  # noqa: A002
        return hits({"a": 0.9})("", top_k)

    def count(self) -> int:
        return 1

    def close(self) -> None: ...


def test_a_store_without_a_word_search_is_refused_unless_words_count_nothing() -> None:
    with pytest.raises(StoreError, match="Wordless has no keyword search"):
        HybridSearch(Wordless(), EMBEDDER)
    assert ids(HybridSearch(Wordless(), EMBEDDER, options=weighing(1.0, 0.0))("q")) == ["a"]


# --- threads --------------------------------------------------------------------------------------


def test_beside_the_original_the_word_search_takes_a_thread_of_the_middleware() -> None:
    release, used, lock = Event(), [], Lock()
    vectors = hits({"a": 0.9, "b": 0.8})

    def words(query: str, top_k: int) -> Any:
        with lock:
            used.append(qm.health().threads.in_use)
        # The original's own has the other one.
        if len(used) > 1:
            release.wait(10)
        return hits({"b": 7.0, "a": 3.0})(query, top_k)

    # With one place, nothing is beside the original's own search.
    limits = {"llmTimeoutMs": 20_000, "deadlineMs": 30_000, "maxConcurrency": 1}
    config = {"transformationType": "rewrite", "limits": limits}
    qm = qtm.QueryMiddleware(config, client=ScriptedModel({"rewrite": "Is Jaco ill?"}))
    search = Hybrid(vectors, words, patience=0.2)
    retrieval = qm.wrap(search, query_arg="query", top_k_arg="top_k").retrieve(QUERY, top_k=2)
    threads = qm.health().threads
    release.set()
    assert [variant.kind for variant in retrieval.variants] == ["original", "rewrite"]
    assert retrieval.status == "full"
    # One for the variant's search, one for the words of it, which are late.
    assert max(used) == 2
    assert (threads.in_use, threads.given_up) == (1, 1)


def test_where_the_middleware_has_no_thread_left_vectors_alone_are_searched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = Recorder()
    config = {"transformationType": "rewrite", "limits": {"llmTimeoutMs": 20_000}}
    qm = qtm.QueryMiddleware(config, client=ScriptedModel({"rewrite": "Is Jaco ill?"}))
    qm.engine.bulkhead.limit = 1
    search = Hybrid(hits({"a": 0.9, "b": 0.8}), words)
    with caplog.at_level(logging.WARNING, "qtmiddleware"):
        retrieval = qm.wrap(search, query_arg="query", top_k_arg="top_k").retrieve(QUERY, top_k=2)
    assert [variant.kind for variant in retrieval.variants] == ["original", "rewrite"]
    assert len(words.queries) == 1  # the original's, which is not counted
    assert (
        qm.health().threads.refused >= 1
    )  # a thread is given back a moment after its result is there
    assert "the keyword search failed" in caplog.text


class Recorder:
    """A word search that keeps what it was asked."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def __call__(self, query: str, top_k: int) -> list[dict[str, Any]]:
        self.queries.append(query)
        return hits({"b": 7.0, "a": 3.0})(query, top_k)
