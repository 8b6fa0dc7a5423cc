"""The store on Pinecone: the real client over real HTTP, all of it held against Pinecone's rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.kit.stores.pinecone import PineconeStore
from qtmiddleware.protocols import KeywordStore, Passage, Store
from tests.support.pinecone_server import operations
from tests.support.pinecone_server.state import Stored
from tests.support.pinecone_world import API_KEY, PineconeWorld, pinecone_world

X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
IDS = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=20)
METADATA = st.dictionaries(
    TEXT.filter(lambda key: not key.startswith("$") and key != "text"),
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.lists(TEXT, max_size=3),
    max_size=4,
)


@pytest.fixture
def world() -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        made.add_index("passages", dimension=3)
        yield made


def opened(world: PineconeWorld, index: str = "passages", **options: Any) -> PineconeStore:
    return PineconeStore(
        world.index(index), **{"embedding_model": "a-model", "dimension": 3, **options}
    )


@pytest.fixture
def store(world: PineconeWorld) -> PineconeStore:
    return opened(world)


def ids(records: list[dict[str, Any]]) -> list[str]:
    return [one["id"] for one in records]


def test_what_its_searches_read_is_part_of_the_account(
    store: PineconeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upsert([Passage("a", "apples", {})], [X])
    monkeypatch.setitem(operations.USAGE, "readUnits", 6)
    with qtm.QueryMiddleware(store=store, embedder=lambda texts: [X for _ in texts]) as qm:
        trace = qm.retriever.retrieve("apples?", top_k=1).trace
    assert (trace.searches, trace.read_units) == (1, 6)


def test_it_is_a_store_without_a_word_search(store: Any) -> None:
    assert isinstance(store, Store)
    assert not isinstance(store, KeywordStore)


def test_the_nearest_come_first_with_text_and_metadata_apart(store: PineconeStore) -> None:
    store.upsert(
        [Passage("x", "ex", {"n": 1, "at": 0.5}), Passage("xy", "both"), Passage("y", "why")],
        [X, [2, 2, 0], Y],
    )
    found = store.search([3.0, 0.0, 0.0], 2)
    assert ids(found) == ["x", "xy"]
    assert found[0] == {"id": "x", "score": 1.0, "text": "ex", "metadata": {"n": 1, "at": 0.5}}
    assert isinstance(found[0]["metadata"]["n"], int)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    records=st.lists(st.tuples(IDS, TEXT, METADATA), max_size=4, unique_by=lambda record: record[0])
)
def test_ids_texts_and_metadata_come_back_as_they_went(store: PineconeStore, records: Any) -> None:
    store.upsert([Passage(*record) for record in records], [X] * len(records))
    found = {one["id"]: (one["text"], one["metadata"]) for one in store.search(X, 10)}
    assert found == {id_: (text, metadata) for id_, text, metadata in records}
    store.delete(list(found))


def test_none_is_left_out_of_metadata_and_tuples_become_lists(store: PineconeStore) -> None:
    given_metadata = {"gone": None, "tags": ("a", "b"), "yes": True}
    store.upsert([Passage("a", "", given_metadata)], [X])
    assert store.search(X, 1)[0]["metadata"] == {"tags": ["a", "b"], "yes": True}
    assert given_metadata == {"gone": None, "tags": ("a", "b"), "yes": True}


def test_arrays_are_taken_for_vectors(store: PineconeStore) -> None:
    np = pytest.importorskip("numpy")
    store.upsert([Passage("a", ""), Passage("b", "")], np.eye(3, dtype=np.float32)[:2])
    assert ids(store.search(np.array([0.0, 1.0, 0.0], dtype=np.float32), 1)) == ["b"]


def test_text_that_was_decoded_badly_is_kept_readable(store: PineconeStore) -> None:
    store.upsert([Passage("a", "be\ud800fore", {"k": "\ud800"})], [X])
    assert store.search(X, 1)[0]["text"] == "be\ufffdfore"


def test_a_filter_reaches_pinecone_in_plain_json(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.upsert(
        [
            Passage(str(n), "", {"n": n, "tags": ["even" if n % 2 == 0 else "odd"]})
            for n in range(6)
        ],
        [X] * 6,
    )
    assert ids(store.search(X, 9, filter={"n": {"$gte": 2, "$lt": 5}, "tags": "even"})) == [
        "2",
        "4",
    ]
    assert ids(store.search(X, 9, filter={"n": {"$in": (1, 5)}})) == ["1", "5"]
    assert ids(store.search(X, 9, filter={"$or": [{"n": 0}, {"tags": {"$nin": {"even"}}}]})) == [
        "0",
        "1",
        "3",
        "5",
    ]
    assert len(store.search(X, 9, filter={})) == 6
    assert "filter" not in world.sent("/query")[-1]


def test_an_impossible_filter_is_refused_before_anything_is_sent(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.count()
    before = len(world.exchanges)
    with pytest.raises(InvalidQuery, match=r"\$like"):
        store.search(X, 1, filter={"a": {"$like": "b"}})
    for number in (float("nan"), float("inf"), 10**400, 2**63):
        with pytest.raises(InvalidQuery, match="a number that Pinecone does not accept"):
            store.search(X, 1, filter={"$and": [{"a": {"$in": [1, number]}}]})
    assert len(world.exchanges) == before


@pytest.mark.parametrize("namespace", ["", "__default__", None])
def test_the_default_namespace_goes_by_several_names(
    world: PineconeWorld, store: PineconeStore, namespace: Any
) -> None:
    store.upsert([Passage("a", "apple")], [X])
    other = opened(world, namespace=namespace)
    assert (ids(other.search(X, 5)), other.count(), other.identity) == (["a"], 1, store.identity)
    other.delete(["a"])
    assert store.count() == 0


def test_namespaces_are_kept_apart(world: PineconeWorld, store: PineconeStore) -> None:
    other = opened(world, namespace="other")
    store.upsert([Passage("a", "apple")], [X])
    other.upsert([Passage("b", "berry"), Passage("c", "cherry")], [X, Y])
    assert (store.count(), other.count()) == (1, 2)
    assert (ids(store.search(X, 5)), ids(other.search(X, 5))) == (["a"], ["b", "c"])


def test_a_write_replaces_and_then_removes_what_was_not_written(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.upsert([Passage("a", "old"), Passage("b", "stale"), Passage("c", "stays")], [X, X, X])
    store.write(
        [(Passage("a", "new"), Y), (Passage("d", "more"), Z)],
        delete=["a", "b", "nobody", "ünknown", ""],
    )
    assert {id_: one.metadata["text"] for id_, one in world.stored("passages").items()} == {
        "a": "new",
        "c": "stays",
        "d": "more",
    }
    assert world.sent("/vectors/delete")[-1]["ids"] == ["b", "nobody"]


def test_of_one_id_twice_the_last_stays(world: PineconeWorld, store: PineconeStore) -> None:
    store.upsert([Passage("a", "first"), Passage("b", ""), Passage("a", "second")], [X, Y, Z])
    assert world.stored("passages")["a"] == Stored((0.0, 0.0, 1.0), {"text": "second"})


def test_nothing_to_write_or_remove_asks_for_nothing(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.upsert([], [])
    store.delete([])
    assert world.exchanges == []


def test_removing_from_a_namespace_that_is_not_there_is_no_error(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.delete(["a"])
    assert world.exchanges[-1].response.status_code == 404


def test_long_texts_go_in_batches_within_every_limit(
    world: PineconeWorld, store: PineconeStore
) -> None:
    passages = [Passage(f"p{n}", "ä" * 4_000, {"n": n}) for n in range(600)]
    short = [Passage(f"s{n}", "") for n in range(2_500)]
    store.upsert([*passages, *short], [X] * 3_100)
    requests = [one for one in world.exchanges if one.path == "/vectors/upsert"]
    assert max(len(one.body) for one in requests) <= 2_000_000
    assert max(len(one.json["vectors"]) for one in requests) == 1_000
    # The estimate is no more than a tenth above the truth, where the text is most of a record.
    assert max(len(one.body) for one in requests) >= 1_800_000
    assert store.count() == 3_100
    store.delete([one.id for one in (*passages, *short)])
    assert [len(body["ids"]) for body in world.sent("/vectors/delete")] == [
        1_000,
        1_000,
        1_000,
        100,
    ]
    assert store.count() == 0


def test_a_write_takes_passages_as_they_come(world: PineconeWorld, store: PineconeStore) -> None:
    held: list[int] = []

    def passages() -> Iterator[tuple[Passage, list[float]]]:
        for n in range(2_001):
            held.append(len(world.stored("passages")))
            yield Passage(str(n), ""), X

    store.write(passages())
    assert (held[1_000], held[1_001], held[2_000]) == (0, 1_000, 1_000)
    assert store.count() == 2_001


def test_what_the_passages_raise_passes_through(store: PineconeStore) -> None:
    def passages() -> Iterator[tuple[Passage, list[float]]]:
        yield Passage("a", ""), X
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        store.write(passages())


@pytest.mark.parametrize(
    ("passage", "vector", "said"),
    [
        (Passage("ä", ""), X, "ASCII"),
        (Passage("", ""), X, "ASCII"),
        (Passage("a" * 513, ""), X, "ASCII"),
        (Passage("a\0", ""), X, "NUL"),
        (Passage(7, ""), X, "ASCII"),  # type: ignore[arg-type]
        (Passage("bad", "", {"set": {"a"}}), X, "metadata of the passage 'bad'"),
        (Passage("bad", "", {"nan": float("nan")}), X, "metadata of the passage 'bad'"),
        (Passage("bad", "x" * 41_000), X, "passage 'bad' are 41,012 bytes"),
        (Passage("bad", ""), [1.0, 2.0], "'bad' must be a list of 3 finite numbers"),
        (Passage("bad", ""), [1.0, float("nan"), 0.0], "'bad' must be a list of 3 finite numbers"),
        (Passage("bad", ""), ["a", "b", "c"], "'bad' must be a list of 3 finite numbers"),
        (Passage("bad", ""), [0.0, 0.0, 0.0], "all zeros"),
    ],
)
def test_a_bad_passage_is_refused_by_name_and_nothing_is_sent(
    world: PineconeWorld, store: PineconeStore, passage: Passage, vector: Any, said: str
) -> None:
    with pytest.raises(StoreError, match=said):
        store.upsert([Passage("good", ""), passage], [X, vector])
    assert world.exchanges == []


def test_too_few_vectors_are_refused(store: PineconeStore) -> None:
    with pytest.raises(StoreError, match="2 passages came with 1 vectors"):
        store.upsert([Passage("a", ""), Passage("b", "")], [X])


@pytest.mark.parametrize("vector", [[1.0, 0.0], [], [1.0, float("inf"), 0.0]])
def test_a_query_of_the_wrong_shape_is_refused(store: PineconeStore, vector: list[float]) -> None:
    with pytest.raises(StoreError, match="the query"):
        store.search(vector, 1)


def test_a_query_by_text_is_refused(store: PineconeStore) -> None:
    with pytest.raises(StoreError, match="vector"):
        store.search("apple", 1)


def test_as_many_are_asked_for_as_pinecone_gives(
    world: PineconeWorld, store: PineconeStore
) -> None:
    assert store.search(X, 20_000) == []
    assert (store.search(X, 0), store.search(X, -1)) == ([], [])
    (sent,) = world.sent("/query")
    assert (sent["topK"], sent["includeMetadata"], sent["includeValues"]) == (10_000, True, False)


def test_greater_is_better_for_euclidean_distances_too(world: PineconeWorld) -> None:
    world.add_index("distances", dimension=3, metric="euclidean")
    store = opened(world, "distances")
    store.upsert([Passage("far", ""), Passage("near", "")], [[9.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    assert [(one["id"], one["score"]) for one in store.search(X, 2)] == [
        ("near", -1.0),
        ("far", -64.0),
    ]


def test_threads_may_write_and_search_at_once(store: PineconeStore) -> None:
    def work(number: int) -> int:
        store.upsert([Passage(f"{number}-{part}", "word") for part in range(5)], [X, Y, Z, X, Y])
        return len(store.search(X, 5))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [5] * 16
    assert store.count() == 80


def test_a_given_index_stays_open_and_a_closed_store_says_so(world: PineconeWorld) -> None:
    index = world.index("passages")
    with PineconeStore(index, embedding_model="a-model", dimension=3) as store:
        store.upsert([Passage("a", "")], [X])
    store.close()
    for use in (lambda: store.search(X, 1), store.count, lambda: store.delete(["a"])):
        with pytest.raises(StoreError, match="the store is closed"):
            use()
    assert index.query(vector=X, top_k=1).matches[0].id == "a"


async def test_an_async_index_is_refused(world: PineconeWorld) -> None:
    from pinecone import AsyncIndex

    async with AsyncIndex(host=world.host("passages"), api_key=API_KEY, ssl_verify=False) as index:
        with pytest.raises(StoreError, match="async"):
            PineconeStore(index, embedding_model="a-model", dimension=3)


def test_no_key_shows_in_its_repr(store: PineconeStore) -> None:
    assert "127.0.0.1" in repr(store)
    assert API_KEY not in repr(store)


# What the index must be.


def test_the_index_is_looked_at_once(world: PineconeWorld, store: PineconeStore) -> None:
    for _ in range(3):
        store.search(X, 1)
        store.upsert([Passage("b", "")], [X])
    assert len(world.sent("/describe_index_stats")) == 1


def test_another_dimension_is_refused(world: PineconeWorld) -> None:
    store = opened(world, dimension=4)
    with pytest.raises(
        StoreError, match=r"vectors of 3 numbers .*'a-model', which makes dense ones of 4"
    ):
        store.count()


def test_an_index_of_sparse_vectors_is_refused(world: PineconeWorld) -> None:
    world.add_index("words", kind="sparse")
    with pytest.raises(StoreError, match="holds sparse vectors"):
        opened(world, "words").search(X, 1)


def test_the_identity_is_of_this_namespace_of_this_index(world: PineconeWorld) -> None:
    first, again, elsewhere = opened(world), opened(world), opened(world, namespace="other")
    assert first.identity == again.identity != elsewhere.identity


def test_a_namespace_may_have_any_name_that_pinecone_takes(world: PineconeWorld) -> None:
    for namespace in ("two words", "a/b?c#d&e", "x" * 512):
        store = opened(world, namespace=namespace)
        store.upsert([Passage("a", "")], [X])
        assert (store.count(), opened(world, namespace=namespace).identity) == (1, store.identity)


def test_everything_sent_is_json_without_a_number_that_is_none(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.upsert([Passage("a", "", {"n": 1e308, "m": -0.0})], [[1e-310, 1e308, -0.0]])
    body = world.sent("/vectors/upsert")[-1]
    assert "null" not in json.dumps(body)
