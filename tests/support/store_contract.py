"""What every store promises, as tests to be inherited."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.protocols import Passage, Store

X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def ids(records: list[dict[str, Any]]) -> list[str]:
    return [record["id"] for record in records]


class StoreContract:
    """Inherit, and give the fixture ``make_store``: a function that makes an empty store for vectors of 3 numbers.

    *IDS* and *METADATA* say what can be kept; a store without *ZEROS* refuses vectors of zeros.
    """

    IDS: ClassVar[Any]
    METADATA: ClassVar[Any]
    ZEROS: ClassVar[bool] = True

    @pytest.fixture
    def store(self, make_store: Callable[[], Any]) -> Any:
        return make_store()

    def test_the_nearest_comes_first_with_its_cosine(self, store: Any) -> None:
        assert isinstance(store, Store)
        store.write([(Passage("xy", "both"), [2, 2, 0]), (Passage("x", "ex", {"n": 1}), X)])
        first, second = store.search([3.0, 0.0, 0.0], 2)
        assert first == {"id": "x", "score": 1.0, "text": "ex", "metadata": {"n": 1}}
        assert (second["id"], second["score"]) == ("xy", pytest.approx(math.sqrt(0.5), abs=1e-6))

    def test_equal_scores_come_by_id_at_any_top_k(self, store: Any) -> None:
        assert store.search(X, 5) == []
        names = [f"p{number:02}" for number in range(40)]
        store.write([(Passage(name, ""), [0.1, 0.7, 0.3]) for name in reversed(names)])
        for top_k in (0, 1, 7, 40, 100):
            assert ids(store.search([0.3, 0.2, 0.9], top_k)) == names[:top_k]

    def test_a_write_replaces_and_removes(self, store: Any) -> None:
        store.write([(Passage(id_, "old", {"v": 1}), X) for id_ in "abc"])
        assert len(store.search(X, 5, filter={"v": 1})) == 3
        new = [(Passage("b", "new", {"v": 2}), Y), (Passage("d", "new", {"v": 1}), X)]
        # An id that is both removed and written is written.
        store.write(new, delete=["a", "nobody", "a", "d"])
        found = {one["id"]: (one["text"], one["score"]) for one in store.search(X, 9)}
        assert found == {"b": ("new", 0.0), "c": ("old", 1.0), "d": ("new", 1.0)}
        assert ids(store.search(X, 9, filter={"v": 1})) == ["c", "d"]
        store.write((), delete=[])
        assert store.count() == 3

    def test_a_bad_batch_is_refused_as_a_whole(self, store: Any) -> None:
        for metadata, vector in (({}, [1.0, 2.0]), ({}, [1.0, math.nan, 0.0]), ({"a": {1, 2}}, Y)):
            with pytest.raises(StoreError):
                store.write([(Passage("a", ""), X), (Passage("b", "", metadata), vector)])
            assert store.count() == 0

    @pytest.mark.parametrize("vector", [[1.0, 0.0], [], [1.0, math.inf, 0.0]])
    def test_a_query_of_the_wrong_shape_is_refused(self, store: Any, vector: list[float]) -> None:
        with pytest.raises(StoreError):
            store.search(vector, 1)

    def test_a_vector_of_zeros_has_the_score_0_or_is_refused(self, store: Any) -> None:
        zero = (Passage("zero", ""), [0.0] * 3)
        if not self.ZEROS:
            with pytest.raises(StoreError):
                store.write([zero])
            return
        store.write([zero, (Passage("x", ""), X)])
        found = [(one["id"], one["score"]) for one in store.search(X, 2)]
        assert found == [("x", 1.0), ("zero", 0.0)]
        assert [one["score"] for one in store.search([0.0] * 3, 2)] == [0.0, 0.0]

    def test_every_store_has_an_identity_of_its_own(self, make_store: Callable[[], Any]) -> None:
        first, second = make_store().identity, make_store().identity
        assert "" != first != second != ""

    @pytest.mark.parametrize(
        ("condition", "met"),
        [
            ({"kind": {"$eq": "pie"}, "page": {"$gte": 2}}, "b"),
            ({"kind": {"$ne": "pie"}}, "ce"),
            ({"kind": {"$in": ["tea", "pie"]}}, "abcd"),
            ({"kind": {"$nin": ["tea"]}}, "abde"),
            ({"page": {"$gt": 1, "$lt": 9}}, "b"),
            ({"page": {"$lte": 1}}, "a"),
            ({"tags": "sweet"}, "ac"),
            ({"$or": [{"page": 9}, {"tags": {"$in": ["salty"]}}]}, "bc"),
            ({"$and": [{"kind": "pie"}, {"tags": "sweet"}]}, "a"),
            ({"hot": {"$ne": True}}, "acde"),
            ({"kind": "soup"}, ""),
            ({}, "abcde"),
        ],
    )
    def test_a_search_finds_those_alone_that_meet_the_filter(
        self,
        store: Any,
        condition: Any,
        met: str,
    ) -> None:
        facts: list[tuple[str, dict[str, Any]]] = [
            ("a", {"kind": "pie", "page": 1, "tags": ["sweet", "warm"]}),
            ("b", {"kind": "pie", "page": 2, "tags": ["salty"], "hot": True}),
            ("c", {"kind": "tea", "page": 9, "tags": ["sweet"], "hot": False}),
            ("d", {"kind": "pie"}),
            ("e", {}),
        ]
        store.write([(Passage(id_, "", metadata), X) for id_, metadata in facts])
        assert "".join(ids(store.search(X, 9, filter=condition))) == met

    def test_a_filter_leaves_the_best_of_those_that_meet_it_at_any_top_k(self, store: Any) -> None:
        store.write(
            (Passage(f"p{n:03}", "", {"kept": n >= 290, "n": n}), [1.0, n / 100, 0.0])
            for n in range(300)
        )
        for top_k in (1, 3, 10, 50):
            found = [one["metadata"]["n"] for one in store.search(X, top_k, filter={"kept": True})]
            assert found == list(range(290, 300))[:top_k]

    def test_an_impossible_filter_is_an_invalid_query(self, store: Any) -> None:
        with pytest.raises(InvalidQuery, match=r"\$near") as caught:
            store.search(X, 5, filter={"place": {"$near": 3}})
        assert caught.value.argument == "filter"

    def test_a_closed_store_says_so_and_closes_twice(self, store: Any) -> None:
        store.close()
        store.close()
        for use in (
            store.count,
            lambda: store.search(X, 1),
            lambda: store.write([(Passage("a", ""), X)]),
            lambda: store.write((), delete=["a"]),
        ):
            with pytest.raises(StoreError, match="closed"):
                use()

    def test_ids_texts_and_metadata_come_back_as_they_went(self, store: Any) -> None:
        rows = st.lists(
            st.tuples(self.IDS, TEXT, self.METADATA), max_size=4, unique_by=lambda row: row[0]
        )

        @settings(max_examples=30)
        @given(rows=rows)
        def go_and_return(rows: Any) -> None:
            store.write([(Passage(*row), X) for row in rows])
            found = [(one["id"], one["text"], one["metadata"]) for one in store.search(X, 10)]
            assert found == sorted(rows, key=lambda row: row[0])
            store.write((), delete=[row[0] for row in rows])
            assert store.count() == 0

        go_and_return()

    def test_text_of_broken_decoding_is_kept_with_a_mark(self, store: Any) -> None:
        store.write([(Passage("a", "half \ud83d done", {"k": "\ud800"}), X)])
        assert store.search(X, 1)[0]["text"] == "half \ufffd done"
