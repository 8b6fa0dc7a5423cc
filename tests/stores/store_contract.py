"""What every store promises, as tests to be inherited: a subclass gives the fixture ``store``, empty, for 3 numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import StoreError
from qtmiddleware.ports import Passage, Store

X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


class StoreContract:
    """Inherit, and give the fixture ``make_store``: a function that makes an empty store for vectors of 3 numbers."""

    @pytest.fixture
    def store(self, make_store: Callable[[], Any]) -> Any:
        return make_store()

    def test_it_is_a_store(self, store: Any) -> None:
        assert isinstance(store, Store)

    def test_the_nearest_comes_first_with_its_cosine(self, store: Any) -> None:
        store.upsert([Passage("x", "ex", {"n": 1}), Passage("xy", "both"), Passage("y", "why")], [X, [2, 2, 0], Y])
        found = store.search([3.0, 0.0, 0.0], 2)
        assert [one["id"] for one in found] == ["x", "xy"]
        assert [one["score"] for one in found] == pytest.approx([1.0, math.sqrt(0.5)], abs=1e-6)
        assert found[0] == {"id": "x", "score": 1.0, "text": "ex", "metadata": {"n": 1}}

    def test_an_empty_store_finds_nothing(self, store: Any) -> None:
        assert store.search(X, 5) == []
        assert store.count() == 0

    def test_top_k_beyond_the_count_finds_all(self, store: Any) -> None:
        store.upsert([Passage("a", ""), Passage("b", "")], [X, Y])
        assert len(store.search(X, 100)) == 2

    def test_top_k_of_none_finds_nothing(self, store: Any) -> None:
        store.upsert([Passage("a", "")], [X])
        assert store.search(X, 0) == []

    def test_equal_scores_come_by_id_at_any_top_k(self, store: Any) -> None:
        ids = [f"p{number:02}" for number in range(40)]
        store.upsert([Passage(id_, "") for id_ in reversed(ids)], [[0.1, 0.7, 0.3]] * 40)
        for top_k in (1, 7, 40):
            assert [one["id"] for one in store.search([0.3, 0.2, 0.9], top_k)] == ids[:top_k]

    def test_upsert_replaces_the_passage_of_the_same_id(self, store: Any) -> None:
        store.upsert([Passage("a", "old", {"v": 1})], [X])
        store.search(X, 1)
        store.upsert([Passage("a", "new", {"w": 2}), Passage("b", "other")], [Y, X])
        assert store.count() == 2
        assert store.search(Y, 1) == [{"id": "a", "score": 1.0, "text": "new", "metadata": {"w": 2}}]
        assert store.search(X, 1)[0]["id"] == "b"

    def test_of_one_id_twice_in_a_batch_the_last_stays(self, store: Any) -> None:
        store.upsert([Passage("a", "first"), Passage("a", "second")], [X, Y])
        assert [(one["text"], one["score"]) for one in store.search(Y, 5)] == [("second", 1.0)]

    def test_an_empty_batch_is_no_error(self, store: Any) -> None:
        store.upsert([], [])
        assert store.count() == 0

    def test_delete_removes_and_counts_what_was_there(self, store: Any) -> None:
        store.upsert([Passage("a", "apple"), Passage("b", "berry")], [X, Y])
        store.search(X, 1)
        assert store.delete(["a", "nobody", "a"]) == 1
        assert [one["id"] for one in store.search(X, 5)] == ["b"]
        assert store.delete([]) == 0

    def test_a_passage_after_a_delete_is_found_by_its_own_vector(self, store: Any) -> None:
        store.upsert([Passage("a", "apple")], [X])
        store.search(X, 1)
        store.delete(["a"])
        store.upsert([Passage("c", "cherry")], [Y])
        assert [(one["id"], one["score"]) for one in store.search(Y, 5)] == [("c", 1.0)]

    @pytest.mark.parametrize(
        ("passages", "vectors"),
        [
            ([Passage("a", ""), Passage("b", "")], [X]),
            ([Passage("a", ""), Passage("b", "")], [X, [1.0, 2.0]]),
            ([Passage("a", ""), Passage("b", "")], [X, [1.0, float("nan"), 0.0]]),
            ([Passage("a", ""), Passage("b", "", {"set": {1, 2}})], [X, Y]),
            ([Passage("a", ""), Passage("\ud800", "")], [X, Y]),
        ],
        ids=["too few vectors", "ragged", "not finite", "metadata is not JSON", "id is not text"],
    )
    def test_a_bad_batch_is_refused_as_a_whole(self, store: Any, passages: Any, vectors: Any) -> None:
        with pytest.raises(StoreError):
            store.upsert(passages, vectors)
        assert store.count() == 0

    @pytest.mark.parametrize("vector", [[1.0, 0.0], [], [1.0, float("inf"), 0.0]])
    def test_a_query_of_the_wrong_shape_is_refused(self, store: Any, vector: list[float]) -> None:
        with pytest.raises(StoreError):
            store.search(vector, 1)

    def test_a_vector_of_zeros_is_found_with_score_0(self, store: Any) -> None:
        store.upsert([Passage("zero", ""), Passage("x", "")], [[0.0] * 3, X])
        assert [(one["id"], one["score"]) for one in store.search(X, 2)] == [("x", 1.0), ("zero", 0.0)]
        assert [one["score"] for one in store.search([0.0] * 3, 2)] == [0.0, 0.0]

    def test_a_batch_larger_than_one_statement_holds_is_written_and_removed(self, store: Any) -> None:
        ids = [str(number) for number in range(1_700)]
        store.upsert([Passage(id_, "") for id_ in ids], [X] * len(ids))
        assert len(store.search(X, 1_600)) == 1_600
        assert store.delete(ids) == 1_700

    def test_threads_may_write_and_search_at_once(self, store: Any) -> None:
        def work(number: int) -> int:
            store.upsert([Passage(f"{number}-{part}", "word") for part in range(5)], [X, Y, Z, X, Y])
            return len(store.search(X, 5))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(40))) == [5] * 40
        assert store.count() == 200

    # Every example makes a store of its own, and each subclass runs the test for its own kind of store.
    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(records=st.lists(st.tuples(TEXT, TEXT, JSON), max_size=4, unique_by=lambda record: record[0]))
    def test_ids_texts_and_metadata_come_back_as_they_went(self, make_store: Any, records: Any) -> None:
        store = make_store()
        store.upsert([Passage(*record) for record in records], [X] * len(records))
        found = {one["id"]: (one["text"], one["metadata"]) for one in store.search(X, 10)}
        assert found == {id_: (text, metadata) for id_, text, metadata in records}
        store.close()
