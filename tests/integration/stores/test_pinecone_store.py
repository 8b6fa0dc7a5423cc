"""The store on Pinecone: the real client over real HTTP, all of it held against Pinecone's rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.kit.stores.pinecone import PineconeStore
from qtmiddleware.protocols import Passage
from tests.support.pinecone_server import operations
from tests.support.pinecone_world import API_KEY, PineconeWorld, pinecone_world

X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]


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
    store.write(zip([Passage("a", "apples", {})], [X], strict=True))
    monkeypatch.setitem(operations.USAGE, "readUnits", 6)
    with qtm.QueryMiddleware(store=store, embedder=lambda texts: [X for _ in texts]) as qm:
        trace = qm.retriever.retrieve("apples?", top_k=1).trace
    assert (trace.searches, trace.read_units) == (1, 6)


def test_the_nearest_come_first_with_text_and_metadata_apart(store: PineconeStore) -> None:
    store.write(
        zip(
            [Passage("x", "ex", {"n": 1, "at": 0.5}), Passage("xy", "both"), Passage("y", "why")],
            [X, [2, 2, 0], Y],
            strict=True,
        )
    )
    found = store.search([3.0, 0.0, 0.0], 2)
    assert ids(found) == ["x", "xy"]
    assert found[0] == {"id": "x", "score": 1.0, "text": "ex", "metadata": {"n": 1, "at": 0.5}}
    assert isinstance(found[0]["metadata"]["n"], int)


def test_none_is_left_out_of_metadata_and_tuples_become_lists(store: PineconeStore) -> None:
    given_metadata = {"gone": None, "tags": ("a", "b"), "yes": True}
    store.write(zip([Passage("a", "", given_metadata)], [X], strict=True))
    assert store.search(X, 1)[0]["metadata"] == {"tags": ["a", "b"], "yes": True}
    assert given_metadata == {"gone": None, "tags": ("a", "b"), "yes": True}


def test_text_that_was_decoded_badly_is_kept_readable(store: PineconeStore) -> None:
    store.write(zip([Passage("a", "be\ud800fore", {"k": "\ud800"})], [X], strict=True))
    assert store.search(X, 1)[0]["text"] == "be\ufffdfore"


def test_a_filter_reaches_pinecone_in_plain_json(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.write(
        zip(
            [
                Passage(str(n), "", {"n": n, "tags": ["even" if n % 2 == 0 else "odd"]})
                for n in range(6)
            ],
            [X] * 6,
            strict=True,
        )
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
    store.write(zip([Passage("a", "apple")], [X], strict=True))
    other = opened(world, namespace=namespace)
    assert (ids(other.search(X, 5)), other.count(), other.identity) == (["a"], 1, store.identity)
    other.write((), delete=["a"])
    assert store.count() == 0


def test_a_write_replaces_and_then_removes_what_was_not_written(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.write(
        zip(
            [Passage("a", "old"), Passage("b", "stale"), Passage("c", "stays")],
            [X, X, X],
            strict=True,
        )
    )
    store.write(
        [(Passage("a", "new"), Y), (Passage("d", "more"), Z)],
        delete=["a", "b", "nobody"],
    )
    assert {id_: one.metadata["text"] for id_, one in world.stored("passages").items()} == {
        "a": "new",
        "c": "stays",
        "d": "more",
    }
    assert world.sent("/vectors/delete")[-1]["ids"] == ["b", "nobody"]


def test_nothing_to_write_or_remove_asks_for_nothing(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.write(zip([], [], strict=True))
    store.write((), delete=[])
    assert world.exchanges == []


def test_removing_from_a_namespace_that_is_not_there_is_no_error(
    world: PineconeWorld, store: PineconeStore
) -> None:
    store.write((), delete=["a"])
    assert world.exchanges[-1].response.status_code == 404


def test_long_texts_go_in_batches_within_every_limit(
    world: PineconeWorld, store: PineconeStore
) -> None:
    passages = [Passage(f"p{n}", "ä" * 4_000, {"n": n}) for n in range(600)]
    short = [Passage(f"s{n}", "") for n in range(2_500)]
    store.write(zip([*passages, *short], [X] * 3_100, strict=True))
    requests = [one for one in world.exchanges if one.path == "/vectors/upsert"]
    assert max(len(one.body) for one in requests) <= 2_000_000
    assert max(len(one.json["vectors"]) for one in requests) == 1_000
    # The estimate is no more than a tenth above the truth, where the text is most of a record.
    assert max(len(one.body) for one in requests) >= 1_800_000
    assert store.count() == 3_100
    store.write((), delete=[one.id for one in (*passages, *short)])
    assert [len(body["ids"]) for body in world.sent("/vectors/delete")] == [
        1_000,
        1_000,
        1_000,
        100,
    ]
    assert store.count() == 0


@pytest.mark.parametrize(
    ("passage", "vector", "said"),
    [
        (Passage("bad", "", {"set": {"a"}}), X, "metadata of the passage 'bad'"),
        (Passage("bad", "x" * 41_000), X, "passage 'bad' are 41,012 bytes"),
        (Passage("bad", ""), [1.0, 2.0], "'bad' must be a list of 3 finite numbers"),
        (Passage("bad", ""), [1.0, float("nan"), 0.0], "'bad' must be a list of 3 finite numbers"),
    ],
)
def test_a_bad_passage_is_refused_by_name_and_nothing_is_sent(
    world: PineconeWorld, store: PineconeStore, passage: Passage, vector: Any, said: str
) -> None:
    with pytest.raises(StoreError, match=said):
        store.write(zip([Passage("good", ""), passage], [X, vector], strict=True))
    assert world.exchanges == []


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
    store.write(
        zip(
            [Passage("far", ""), Passage("near", "")],
            [[9.0, 0.0, 0.0], [2.0, 0.0, 0.0]],
            strict=True,
        )
    )
    assert [(one["id"], one["score"]) for one in store.search(X, 2)] == [
        ("near", -1.0),
        ("far", -64.0),
    ]


def test_a_given_index_stays_open_and_a_closed_store_says_so(world: PineconeWorld) -> None:
    index = world.index("passages")
    with PineconeStore(index, embedding_model="a-model", dimension=3) as store:
        store.write(zip([Passage("a", "")], [X], strict=True))
    store.close()
    for use in (lambda: store.search(X, 1), store.count, lambda: store.write((), delete=["a"])):
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
        store.write(zip([Passage("b", "")], [X], strict=True))
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


def test_a_namespace_may_have_any_name_that_pinecone_takes(world: PineconeWorld) -> None:
    for namespace in ("two words", "a/b?c#d&e", "x" * 512):
        store = opened(world, namespace=namespace)
        store.write(zip([Passage("a", "")], [X], strict=True))
        assert (store.count(), opened(world, namespace=namespace).identity) == (1, store.identity)
