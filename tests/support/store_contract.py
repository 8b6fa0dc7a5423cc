"""What stores promise, as tests to be inherited.

`StoreContract` is for every store; a store that makes each write visible whole or not at all
inherits `AtomicStoreContract` too, one that finds words `KeywordContract`, and one that keeps files
`FileStoreContract`.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.kit import stores
from qtmiddleware.protocols import Passage, Store
from tests.support.waiting import PATIENCE

X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON = st.dictionaries(
    TEXT,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False)
        | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


class StoreContract:
    """Inherit, and give the fixture ``make_store``: a function that makes an empty store for vectors of 3 numbers.

    *IDS* and *METADATA* say what can be kept; a store without *ZEROS* refuses vectors of zeros.
    """

    IDS: ClassVar[Any] = TEXT
    METADATA: ClassVar[Any] = JSON
    ZEROS: ClassVar[bool] = True

    @pytest.fixture
    def store(self, make_store: Callable[[], Any]) -> Any:
        return make_store()

    def test_it_is_a_store(self, store: Any) -> None:
        assert isinstance(store, Store)

    def test_the_nearest_comes_first_with_its_cosine(self, store: Any) -> None:
        store.write(
            zip(
                [Passage("x", "ex", {"n": 1}), Passage("xy", "both"), Passage("y", "why")],
                [X, [2, 2, 0], Y],
                strict=True,
            )
        )
        found = store.search([3.0, 0.0, 0.0], 2)
        assert [one["id"] for one in found] == ["x", "xy"]
        assert [one["score"] for one in found] == pytest.approx([1.0, math.sqrt(0.5)], abs=1e-6)
        assert found[0] == {"id": "x", "score": 1.0, "text": "ex", "metadata": {"n": 1}}

    def test_equal_scores_come_by_id_at_any_top_k(self, store: Any) -> None:
        assert store.search(X, 5) == []
        ids = [f"p{number:02}" for number in range(40)]
        store.write(
            zip([Passage(id_, "") for id_ in reversed(ids)], [[0.1, 0.7, 0.3]] * 40, strict=True)
        )
        for top_k in (0, 1, 7, 40, 100):
            assert [one["id"] for one in store.search([0.3, 0.2, 0.9], top_k)] == ids[:top_k]

    def test_upsert_replaces_the_passage_of_the_same_id(self, store: Any) -> None:
        store.write(zip([Passage("a", "old", {"v": 1})], [X], strict=True))
        store.search(X, 1)
        store.write(
            zip([Passage("a", "new", {"w": 2}), Passage("b", "other")], [Y, X], strict=True)
        )
        assert store.count() == 2
        assert store.search(Y, 1) == [
            {"id": "a", "score": 1.0, "text": "new", "metadata": {"w": 2}}
        ]
        assert store.search(X, 1)[0]["id"] == "b"

    def test_delete_removes_what_is_there_and_minds_nothing_that_is_not(self, store: Any) -> None:
        store.write(zip([Passage("a", "apple"), Passage("b", "berry")], [X, Y], strict=True))
        store.search(X, 1)
        store.write((), delete=["a", "nobody", "a"])
        assert [one["id"] for one in store.search(X, 5)] == ["b"]
        store.write((), delete=[])
        assert store.count() == 1

    @pytest.mark.parametrize(
        ("passages", "vectors"),
        [
            ([Passage("a", ""), Passage("b", "")], [X, [1.0, 2.0]]),
            ([Passage("a", ""), Passage("b", "")], [X, [1.0, float("nan"), 0.0]]),
            ([Passage("a", ""), Passage("b", "", {"set": {1, 2}})], [X, Y]),
        ],
        ids=["ragged", "not finite", "metadata is not JSON"],
    )
    def test_a_bad_batch_is_refused_as_a_whole(
        self, store: Any, passages: Any, vectors: Any
    ) -> None:
        with pytest.raises(StoreError):
            store.write(zip(passages, vectors, strict=True))
        assert store.count() == 0

    @pytest.mark.parametrize("vector", [[1.0, 0.0], [], [1.0, float("inf"), 0.0]])
    def test_a_query_of_the_wrong_shape_is_refused(self, store: Any, vector: list[float]) -> None:
        with pytest.raises(StoreError):
            store.search(vector, 1)

    def test_a_vector_of_zeros_has_the_score_0_or_is_refused(self, store: Any) -> None:
        passages = [Passage("zero", ""), Passage("x", "")], [[0.0] * 3, X]
        if not self.ZEROS:
            with pytest.raises(StoreError):
                store.write(zip(*passages, strict=True))
            return
        store.write(zip(*passages, strict=True))
        assert [(one["id"], one["score"]) for one in store.search(X, 2)] == [
            ("x", 1.0),
            ("zero", 0.0),
        ]
        assert [one["score"] for one in store.search([0.0] * 3, 2)] == [0.0, 0.0]

    def test_a_batch_larger_than_one_statement_holds_is_written_and_removed(
        self, store: Any
    ) -> None:
        ids = [str(number) for number in range(1_700)]
        store.write(zip([Passage(id_, "") for id_ in ids], [X] * len(ids), strict=True))
        assert len(store.search(X, 1_600)) == 1_600
        store.write((), delete=ids)
        assert store.count() == 0

    def test_threads_may_write_and_search_at_once(self, store: Any) -> None:
        def work(number: int) -> int:
            store.write(
                zip(
                    [Passage(f"{number}-{part}", "word") for part in range(5)],
                    [X, Y, Z, X, Y],
                    strict=True,
                )
            )
            return len(store.search(X, 5))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(40))) == [5] * 40
        assert store.count() == 200

    def test_a_write_replaces_and_removes(self, store: Any) -> None:
        store.write(
            zip(
                [Passage("a", "old"), Passage("b", "old"), Passage("c", "old")],
                [X, Y, Z],
                strict=True,
            )
        )
        store.write([(Passage("b", "new"), X), (Passage("d", "new"), Y)], delete=["a", "nobody"])
        found = {one["id"]: (one["text"], one["score"]) for one in store.search(X, 9)}
        assert found == {"b": ("new", 1.0), "c": ("old", 0.0), "d": ("new", 0.0)}

    def test_an_id_that_is_both_removed_and_written_is_written(self, store: Any) -> None:
        store.write(zip([Passage("a", "old")], [X], strict=True))
        store.write([(Passage("a", "new"), Y), (Passage("b", "new"), Y)], delete=["a", "b"])
        assert [(one["id"], one["text"], one["score"]) for one in store.search(Y, 9)] == [
            ("a", "new", 1.0),
            ("b", "new", 1.0),
        ]

    def test_of_one_id_far_apart_in_a_write_the_last_stays(self, store: Any) -> None:
        many = [(Passage(f"p{n}", ""), X) for n in range(700)]
        store.write([(Passage("a", "first"), X), *many, (Passage("a", "last"), Y)])
        assert [one["text"] for one in store.search(Y, 1)] == ["last"]
        assert store.count() == 701

    def test_every_store_has_an_identity_of_its_own(self, make_store: Callable[[], Any]) -> None:
        first, second = make_store(), make_store()
        assert first.identity
        assert first.identity != second.identity

    @pytest.mark.parametrize(
        ("condition", "met"),
        [
            ({"kind": "pie"}, "abd"),
            ({"kind": {"$eq": "pie"}, "page": {"$gte": 2}}, "b"),
            ({"kind": {"$ne": "pie"}}, "ce"),
            ({"kind": {"$in": ["tea", "pie"]}}, "abcd"),
            ({"kind": {"$nin": ["tea"]}}, "abde"),
            ({"page": {"$gt": 1, "$lt": 9}}, "b"),
            ({"page": {"$lte": 1}}, "a"),
            ({"page": {"$exists": False}}, "de"),
            ({"tags": "sweet"}, "ac"),
            ({"$or": [{"page": 9}, {"tags": {"$in": ["salty"]}}]}, "bc"),
            ({"$and": [{"kind": "pie"}, {"tags": "sweet"}]}, "a"),
            ({"hot": True}, "b"),
            ({"hot": {"$ne": True}}, "acde"),
            ({"kind": "soup"}, ""),
            ({}, "abcde"),
        ],
    )
    def test_a_search_finds_those_alone_that_meet_the_filter(
        self, store: Any, condition: Any, met: str
    ) -> None:
        facts: dict[str, dict[str, Any]] = {
            "a": {"kind": "pie", "page": 1, "tags": ["sweet", "warm"]},
            "b": {"kind": "pie", "page": 2, "tags": ["salty"], "hot": True},
            "c": {"kind": "tea", "page": 9, "tags": ["sweet"], "hot": False},
            "d": {"kind": "pie"},
            "e": {},
        }
        store.write(
            zip(
                [Passage(id_, "", held) for id_, held in facts.items()],
                [X, Y, X, Y, Z],
                strict=True,
            )
        )
        assert "".join(sorted(one["id"] for one in store.search(X, 9, filter=condition))) == met

    def test_a_filter_leaves_the_best_of_those_that_meet_it_at_any_top_k(self, store: Any) -> None:
        vectors = [[1.0, number / 100, 0.0] for number in range(300)]
        store.write(
            zip(
                [Passage(f"p{n:03}", "", {"kept": n >= 290, "n": n}) for n in range(300)],
                vectors,
                strict=True,
            )
        )
        for top_k in (1, 3, 10, 50):
            found = [one["metadata"]["n"] for one in store.search(X, top_k, filter={"kept": True})]
            assert found == list(range(290, 300))[:top_k]

    def test_a_filter_meets_what_was_written_since_it_was_last_used(self, store: Any) -> None:
        store.write(
            zip([Passage("a", "", {"v": 1}), Passage("b", "", {"v": 1})], [X, X], strict=True)
        )
        assert len(store.search(X, 5, filter={"v": 1})) == 2
        store.write(
            [(Passage("a", "", {"v": 2}), X), (Passage("c", "", {"v": 1}), X)], delete=["b"]
        )
        assert [one["id"] for one in store.search(X, 5, filter={"v": 1})] == ["c"]

    def test_an_impossible_filter_is_an_invalid_query(self, store: Any) -> None:
        with pytest.raises(InvalidQuery, match=r"\$near") as caught:
            store.search(X, 5, filter={"place": {"$near": 3}})
        assert caught.value.argument == "filter"

    def test_a_closed_store_says_so_and_closes_twice(self, store: Any) -> None:
        store.close()
        store.close()
        for used in (
            store.count,
            lambda: store.search(X, 1),
            lambda: store.write(zip([Passage("a", "")], [X], strict=True)),
        ):
            with pytest.raises(StoreError, match="closed"):
                used()

    def test_the_vector_a_caller_asked_with_is_left_as_it_is(self, store: Any) -> None:
        import numpy as np

        asked = np.array([3.0, 4.0, 0.0], dtype=np.float32)
        store.write(zip([Passage("a", "")], [asked], strict=True))
        assert [one["score"] for one in store.search(asked, 1)] == [1.0]
        assert asked.tolist() == [3.0, 4.0, 0.0]

    def test_ids_texts_and_metadata_come_back_as_they_went(self, store: Any) -> None:
        @settings(max_examples=30, deadline=None)
        @given(
            records=st.lists(
                st.tuples(self.IDS, TEXT, self.METADATA),
                max_size=4,
                unique_by=lambda record: record[0],
            )
        )
        def go_and_return(records: Any) -> None:
            store.write(
                zip([Passage(*record) for record in records], [X] * len(records), strict=True)
            )
            found = {one["id"]: (one["text"], one["metadata"]) for one in store.search(X, 10)}
            assert found == {id_: (text, metadata) for id_, text, metadata in records}
            store.write((), delete=list(found))
            assert store.count() == 0

        go_and_return()


class AtomicStoreContract(StoreContract):
    """For stores whose every write is seen whole or not at all."""

    def test_passages_that_fail_half_way_leave_all_as_it_was(self, store: Any) -> None:
        store.write(zip([Passage("a", "old"), Passage("b", "old")], [X, X], strict=True))
        with pytest.raises(RuntimeError):
            store.write(failing(1_100, first="a"), delete=["b"])
        assert [(one["id"], one["text"]) for one in store.search(X, 9)] == [
            ("a", "old"),
            ("b", "old"),
        ]

    def test_searches_go_on_and_see_the_old_state_while_the_passages_of_a_write_are_made(
        self, store: Any
    ) -> None:
        store.write(zip([Passage("a", "old")], [X], strict=True))
        seen = []

        def passages() -> Iterator[tuple[Passage, list[float]]]:
            for number in range(3):
                yield from ((Passage(f"{number}-{n}", "new"), X) for n in range(600))
                seen.append(
                    pool.submit(lambda: (store.search(X, 5), store.count())).result(
                        timeout=PATIENCE
                    )
                )

        with ThreadPoolExecutor(1) as pool:
            store.write(passages(), delete=["a"])
        assert [([one["id"] for one in found], count) for found, count in seen] == [(["a"], 1)] * 3
        assert store.count() == 1_800

    def test_readers_see_the_state_before_a_write_or_after_it_and_nothing_between(
        self, store: Any
    ) -> None:
        def state(number: int) -> list[Passage]:
            return [
                Passage(f"{number}-{n}", "word", {"state": number, "even": n % 2 == 0})
                for n in range(20)
            ]

        store.write(zip(state(0), [X] * 20, strict=True))
        done = threading.Event()

        def read(condition: Any, expected: int) -> set[tuple[int, int]]:
            wrong = set()
            while not done.is_set():
                found = store.search(X, 100, filter=condition)
                states = {one["metadata"]["state"] for one in found}
                if len(found) != expected or len(states) != 1:
                    wrong.add((len(found), len(states)))
            return wrong

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read, None, 20), pool.submit(read, {"even": True}, 10)]
            try:
                for number in range(1, 16):
                    gone = [passage.id for passage in state(number - 1)]
                    store.write(zip(state(number), [X] * 20, strict=True), delete=gone)
            finally:
                done.set()
            assert [reader.result() for reader in readers] == [set(), set()]


class KeywordContract:
    """For stores that find passages by their words; beside `StoreContract`, whose fixtures it uses."""

    @pytest.fixture
    def store(self, make_store: Callable[[], Any]) -> Any:
        return make_store()

    def test_keywords_find_words_without_case_and_accents_best_first(self, store: Any) -> None:
        store.write(
            zip(
                [
                    Passage("long", "The café serves tea. " * 9),
                    Passage("short", "Cafe tea cake"),
                    Passage("no", "Rain"),
                ],
                [X, X, X],
                strict=True,
            )
        )
        found = store.keyword_search("CAFÉ cake?", 5)
        assert [one["id"] for one in found] == ["short", "long"]
        assert found[0]["score"] > found[1]["score"] > 0
        assert store.keyword_search("cafe", 1)[0].keys() == {"id", "score", "text", "metadata"}

    def test_no_words_and_a_top_k_of_none_find_nothing(self, store: Any) -> None:
        store.write(zip([Passage("a", "apple")], [X], strict=True))
        assert store.keyword_search(" ?! ", 5) == []
        assert store.keyword_search("apple", 0) == []

    def test_replaced_and_removed_words_are_no_longer_found(self, store: Any) -> None:
        store.write(zip([Passage("a", "apple"), Passage("b", "berry")], [X, Y], strict=True))
        store.write(zip([Passage("a", "apricot")], [X], strict=True))
        store.write((), delete=["b"])
        assert [len(store.keyword_search(word, 5)) for word in ("apple", "berry", "apricot")] == [
            0,
            0,
            1,
        ]

    def test_equal_scores_of_words_come_by_id_at_any_top_k(self, store: Any) -> None:
        ids = [f"p{number:02}" for number in range(40)]
        store.write(
            zip([Passage(id_, "apple pie") for id_ in reversed(ids)], [X] * 40, strict=True)
        )
        for top_k in (1, 7, 40):
            assert [one["id"] for one in store.keyword_search("pie", top_k)] == ids[:top_k]

    def test_words_of_the_context_are_found_and_the_text_stays_plain(self, store: Any) -> None:
        store.write(
            zip(
                [
                    Passage("a", "It grew by 3 %.", {"context": "Revenue of Acme"}),
                    Passage("b", "acorn"),
                ],
                [X, X],
                strict=True,
            )
        )
        found = store.keyword_search("acme", 5)
        assert found == [
            {
                **found[0],
                "id": "a",
                "text": "It grew by 3 %.",
                "metadata": {"context": "Revenue of Acme"},
            }
        ]

    @pytest.mark.parametrize(
        ("query", "first"),
        [
            ("新宿区", "tokyo"),
            ("猫", "cat"),
            ("猫は魚", "cat"),
            ("苹果公司", "company"),
            ("香蕉", "fruit"),
            ("서울", "seoul"),
            ("เมืองหลวง", "bangkok"),
            ("राजधानी", "delhi"),
            ("ＬＯＮＤＯＮ", "london"),
            ("Straße", "street"),
            ("strasse", "street"),
        ],
    )
    def test_words_of_every_script_are_found(self, store: Any, query: str, first: str) -> None:
        texts = {
            "tokyo": "東京都庁は新宿区にあります。",
            "cat": "私の猫は魚が好きです。",
            "company": "苹果公司在加利福尼亚州发布了新产品。",
            "fruit": "我喜欢吃苹果和香蕉。",
            "seoul": "부산에서 서울까지 기차로 세 시간 걸립니다.",
            "bangkok": "กรุงเทพเป็นเมืองหลวงของประเทศไทย",
            "delhi": "दिल्ली भारत की राजधानी है",
            "london": "London is rainy",
            "street": "Die Straße ist nass",
        }
        store.write(
            zip([Passage(id_, text) for id_, text in texts.items()], [X] * len(texts), strict=True)
        )
        assert store.keyword_search(query, 3)[0]["id"] == first

    def test_a_keyword_search_finds_those_alone_that_meet_the_filter(self, store: Any) -> None:
        held = [Passage(f"p{n:03}", "pie " * (1 + n % 7), {"n": n}) for n in range(200)]
        store.write(zip(held, [X] * 200, strict=True))
        found = store.keyword_search("pie", 50, filter={"n": {"$gte": 190}})
        assert sorted(one["metadata"]["n"] for one in found) == list(range(190, 200))
        assert len(store.keyword_search("pie", 3, filter={"n": {"$gte": 190}})) == 3

    @pytest.mark.parametrize(
        "text",
        ['"', "a OR b NOT", "text:apple", "NEAR(apple", "app*", "^apple", "", "'; DROP TABLE x"],
    )
    def test_query_syntax_is_read_as_words(self, store: Any, text: str) -> None:
        store.write(zip([Passage("a", "apple pie")], [X], strict=True))
        assert [one["id"] for one in store.keyword_search(text, 5)] == (
            ["a"] if "apple" in text else []
        )

    def test_no_text_breaks_the_keyword_search(self, store: Any) -> None:
        store.write(zip([Passage("a", "apple pie")], [X], strict=True))

        @settings(max_examples=60, deadline=None)
        @given(text=st.text(max_size=60))
        def search(text: str) -> None:
            assert len(store.keyword_search(text, 5)) <= 1

        search()


class FileStoreContract:
    """For stores that keep files; beside `StoreContract`. *KIND* names the class in `qtmiddleware.kit.stores`."""

    KIND: ClassVar[str]

    def opened(self, path: Path, *, model: str = "model", dimension: int = 3) -> Any:
        """The store at *path*."""
        return getattr(stores, self.KIND)(path, embedding_model=model, dimension=dimension)

    def script(self, lines: str) -> str:
        """A program with a store at its first argument, called ``store``."""
        return (
            f"import sys; from qtmiddleware.kit.stores import {self.KIND}\n"
            "from qtmiddleware.protocols import Passage\n"
            f"store = {self.KIND}(sys.argv[1], embedding_model='model', dimension=3)\n"
        ) + lines

    def test_what_was_written_is_there_after_reopening(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "folders" / "index"
        with self.opened(path) as store:
            store.write(zip([Passage("a", "apple pie", {"n": 1})], [X], strict=True))
            identity = store.identity
        with self.opened(path) as store:
            assert store.identity == identity
            assert store.search(X, 1) == [
                {"id": "a", "score": 1.0, "text": "apple pie", "metadata": {"n": 1}}
            ]
            assert store.search(X, 1, filter={"n": 2}) == []
            assert store.keyword_search("pie", 1)[0]["id"] == "a"

    def test_the_write_of_another_process_is_seen_by_the_next_search(self, tmp_path: Path) -> None:
        path = tmp_path / "index"
        script = self.script(
            "store.write(zip([Passage('theirs', 'theirs'), Passage('ours', 'changed')], [[0, 1, 0], [0, 0, 1]], strict=True))\n"
            "store.write((), delete=['gone'])\n"
        )
        with self.opened(path) as store:
            store.write(
                zip([Passage("ours", "ours"), Passage("gone", "gone")], [X, X], strict=True)
            )
            assert len(store.search(X, 5)) == 2
            subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=200)
            found = [(one["id"], one["text"]) for one in store.search(Y, 5)]
            assert sorted(found) == [("ours", "changed"), ("theirs", "theirs")]
            assert found[0][0] == "theirs"
            assert [one["id"] for one in store.search(Z, 1)] == ["ours"]

    def test_a_process_killed_while_it_writes_leaves_whole_writes_only(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "index"
        script = self.script(
            "for batch in range(1_000_000):\n"
            "    new = ((Passage(f'{batch}-{n}', 'some words', {'b': batch}), [1, 0, 0]) for n in range(600))\n"
            "    store.write(new, delete=[f'{batch - 2}-{n}' for n in range(600)])\n"
            "    print(batch, flush=True)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            for _ in range(5):
                acknowledged = int(child.stdout.readline())
            child.kill()
            acknowledged = max([acknowledged, *map(int, child.stdout.read().split(b"\n")[:-1])])
        with self.opened(path) as store:
            held = [one["metadata"]["b"] for one in store.search(X, 10_000)]
            # The last write may have been finished and not yet acknowledged.
            last = max(held)
            assert last in (acknowledged, acknowledged + 1)
            assert sorted(held) == [last - 1] * 600 + [last] * 600
            assert len(store.keyword_search("words", 10_000)) == store.count() == 1_200
            store.write(zip([Passage("after", "")], [X], strict=True))
            assert store.count() == 1_201

    def test_two_processes_may_make_the_same_store_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "index"
        script = self.script(
            "store.write(zip([Passage(sys.argv[2], ''), Passage('same', '')], [[1, 0, 0]] * 2, strict=True))\n"
        )
        children = [
            subprocess.Popen([sys.executable, "-c", script, str(path), name]) for name in "ab"
        ]
        assert [child.wait(PATIENCE) for child in children] == [0, 0]
        with self.opened(path) as store:
            assert sorted(one["id"] for one in store.search(X, 9)) == ["a", "b", "same"]
            assert store.keyword_search("word", 1) == []

    @pytest.mark.parametrize(("model", "dimension"), [("other", 3), ("model", 4)])
    def test_another_embedding_model_is_refused_naming_both(
        self, tmp_path: Path, model: str, dimension: int
    ) -> None:
        path = tmp_path / "index"
        self.opened(path).close()
        with pytest.raises(
            StoreError, match=rf"'model' \(3 .*'{model}' \({dimension}\).*ingest again"
        ):
            self.opened(path, model=model, dimension=dimension)

    def test_a_path_below_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot be used"):
            self.opened(tmp_path / "file" / "index")

    def test_no_text_is_printed_with_the_store(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "index") as store:
            store.write(zip([Passage("a", "secret")], [X], strict=True))
            assert "secret" not in repr(store)


RAISED = RuntimeError("out of paper")


def failing(after: int, *, first: str = "p") -> Iterator[tuple[Passage, list[float]]]:
    """Some passages, and then `RAISED`."""
    yield Passage(first, "new"), X
    for number in range(after):
        yield Passage(f"p{number}", "new"), X
    raise RAISED
