"""The store on Pinecone: the real client over real HTTP, all of it held against Pinecone's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.kit.stores.pinecone import PineconeStore
from qtmiddleware.protocols import Passage
from tests.support.pinecone_world import PineconeWorld, pinecone_world
from tests.support.store_contract import TEXT, StoreContract, X, Y, Z, ids

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture
def world() -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        made.add_index("passages", dimension=3)
        yield made


def opened(world: PineconeWorld, index: str = "passages", **options: Any) -> PineconeStore:
    options = {"embedding_model": "a-model", "dimension": 3, **options}
    return PineconeStore(lambda: world.index(index), **options)


@pytest.fixture
def store(world: PineconeWorld) -> PineconeStore:
    return opened(world)


class TestContract(StoreContract):
    IDS = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=40)
    METADATA = st.dictionaries(
        TEXT.filter(lambda key: not key.startswith("$") and key != "text"),
        st.booleans() | NUMBERS | TEXT | st.lists(TEXT, max_size=3),
        max_size=4,
    )
    ZEROS = False

    @pytest.fixture
    def make_store(self, world: PineconeWorld) -> Callable[[], PineconeStore]:
        def make() -> PineconeStore:
            name = f"index-{len(world.app.indexes)}"
            world.add_index(name, dimension=3)
            return opened(world, name)

        return make


def test_metadata_is_stored_as_pinecone_takes_it_and_comes_back_with_integers(
    world: PineconeWorld,
) -> None:
    store = opened(world, text_field="body")
    metadata = {"gone": None, "tags": ("a", "b"), "yes": True, "n": 1, "at": 0.5}
    store.write([(Passage("a", "apple", metadata), X)])
    (found,) = store.search(X, 1, filter={})
    assert "filter" not in world.sent("/query")[-1]
    assert (found["text"], found["metadata"]) == (
        "apple",
        {"tags": ["a", "b"], "yes": True, "n": 1, "at": 0.5},
    )
    assert isinstance(found["metadata"]["n"], int)
    assert world.stored("passages")["a"].metadata["body"] == "apple"
    assert metadata["gone"] is None


def test_an_impossible_filter_is_refused_before_anything_is_sent(
    world: PineconeWorld,
    store: PineconeStore,
) -> None:
    with pytest.raises(InvalidQuery, match="near"):
        store.search(X, 1, filter={"$and": [{"a": {"$near": 1}}]})
    assert world.exchanges == []


@pytest.mark.parametrize("namespace", ["", "__default__"])
def test_the_default_namespace_goes_by_several_names(
    world: PineconeWorld,
    store: PineconeStore,
    namespace: Any,
) -> None:
    store.write([(Passage("a", "apple"), X)])
    other = opened(world, namespace=namespace)
    assert (ids(other.search(X, 5)), other.count(), other.identity) == (["a"], 1, store.identity)


def test_a_write_sends_only_what_there_is_and_removes_last_what_was_not_written(
    world: PineconeWorld,
    store: PineconeStore,
) -> None:
    store.write((), delete=[])
    assert world.exchanges == []
    # Of a namespace that is not there, nothing can be removed.
    store.write((), delete=["a"])
    assert world.exchanges[-1].response.status_code == 404
    store.write([(Passage("a", "new"), Y), (Passage("d", "more"), Z)], delete=["a", "b", "nobody"])
    assert world.exchanges[-1].path == "/vectors/delete"
    assert world.sent("/vectors/delete")[-1]["ids"] == ["b", "nobody"]
    assert len(world.sent("/describe_index_stats")) == 1


def test_long_texts_go_in_batches_within_every_limit(
    world: PineconeWorld,
    store: PineconeStore,
) -> None:
    passages = [Passage(f"p{n}", "ä" * 4_000, {"n": n}) for n in range(600)]
    short = [Passage(f"s{n}", "") for n in range(2_500)]
    store.write((passage, X) for passage in [*passages, *short])
    requests = [one for one in world.exchanges if one.path == "/vectors/upsert"]
    # The estimate is at most a tenth above the truth, if the text is most of a record.
    assert 1_800_000 <= max(len(one.body) for one in requests) <= 2_000_000
    assert max(len(one.json["vectors"]) for one in requests) == 1_000
    assert store.count() == 3_100
    store.write((), delete=[one.id for one in (*passages, *short)])
    assert [len(body["ids"]) for body in world.sent("/vectors/delete")] == [*[1_000] * 3, 100]


@pytest.mark.parametrize(
    ("passage", "vector", "said"),
    [
        (Passage("bad", "", {"set": {"a"}}), X, "metadata of the passage 'bad'"),
        (Passage("bad", "é" * 20_480), X, "'bad' has 40,971 bytes .* at most 40,960. .* chunkSize"),
        (Passage("bad", ""), [1.0, 2.0], "each vector must be a list of 3 finite numbers"),
    ],
)
def test_a_bad_passage_is_refused_and_nothing_is_sent(
    world: PineconeWorld,
    store: PineconeStore,
    passage: Passage,
    vector: Any,
    said: str,
) -> None:
    with pytest.raises(StoreError, match=said):
        store.write([(Passage("good", ""), X), (passage, vector)])
    assert world.exchanges == []


def test_greater_is_better_for_euclidean_distances_too(world: PineconeWorld) -> None:
    world.add_index("distances", dimension=3, metric="euclidean")
    store = opened(world, "distances")
    store.write([(Passage("far", ""), [9.0, 0.0, 0.0]), (Passage("near", ""), [2.0, 0.0, 0.0])])
    found = [(one["id"], one["score"]) for one in store.search(X, 2)]
    assert found == [("near", -1.0), ("far", -64.0)]


def test_an_index_of_another_dimension_or_kind_is_refused(world: PineconeWorld) -> None:
    told = r"vectors of 3 numbers, not dense ones of 4 as 'a-model' makes"
    with pytest.raises(StoreError, match=told):
        opened(world, dimension=4).count()
    world.add_index("words", kind="sparse")
    with pytest.raises(StoreError, match="holds sparse vectors"):
        opened(world, "words").search(X, 1)
