"""The word search on Pinecone, and indexes that embed by themselves: the real client over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.kit.stores.pinecone import (
    HybridPineconeStore,
    PineconeSparseEncoder,
    PineconeStore,
    PineconeTextStore,
    SparsePineconeStore,
)
from qtmiddleware.protocols import KeywordStore, Passage, Store
from tests.support.pinecone_world import PineconeWorld, pinecone_world

X, Y = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
SPARSE = "pinecone-sparse-english-v0"
PASSAGES = [
    Passage("a", "apple pie", {"page": 1}),
    Passage("b", "banana"),
    Passage("c", "an apple a day"),
]
VECTORS = [X, Y, [1.0, 1.0, 0.0]]


@pytest.fixture
def world() -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        made.add_index("passages", dimension=3)
        made.add_index("words", kind="sparse")
        made.add_index("texts", dimension=16, model="test-embed", text_field="chunk")
        made.add_index("sparse-texts", kind="sparse", model=SPARSE)
        yield made


@pytest.fixture
def words(world: PineconeWorld) -> SparsePineconeStore:
    return SparsePineconeStore(world.index("words"), PineconeSparseEncoder(world.client(), SPARSE))


@pytest.fixture
def hybrid(world: PineconeWorld, words: SparsePineconeStore) -> HybridPineconeStore:
    return HybridPineconeStore(
        world.index("passages"), sparse=words, embedding_model="a-model", dimension=3
    )


@pytest.fixture
def texts(world: PineconeWorld) -> PineconeTextStore:
    return PineconeTextStore(world.index("texts"), text_field="chunk")


def ids(records: list[dict[str, Any]]) -> list[str]:
    return [one["id"] for one in records]


# Two indexes as one store.


def test_with_a_sparse_index_it_is_a_store_with_a_word_search(hybrid: Any, words: Any) -> None:
    assert isinstance(hybrid, Store)
    assert isinstance(hybrid, KeywordStore)
    assert isinstance(words, Store)
    assert (hybrid.embeds, words.embeds) == (False, True)


def test_passages_are_found_by_their_words_with_text_and_metadata(
    hybrid: HybridPineconeStore,
) -> None:
    hybrid.upsert(PASSAGES, VECTORS)
    found = hybrid.keyword_search("apple pie", 5)
    assert ids(found) == ["a", "c"]
    assert found[0] == {"id": "a", "score": 2.0, "text": "apple pie", "metadata": {"page": 1}}
    assert ids(hybrid.keyword_search("apple", 1)) == ["a"]
    assert ids(hybrid.search(Y, 1)) == ["b"]


def test_the_words_of_the_context_count_as_the_passages_own(hybrid: HybridPineconeStore) -> None:
    hybrid.upsert([Passage("a", "It grew.", {"context": "On revenue in March."})], [X])
    (found,) = hybrid.keyword_search("revenue", 5)
    assert (found["text"], found["metadata"]) == ("It grew.", {"context": "On revenue in March."})


def test_a_filter_holds_for_the_word_search_too(hybrid: HybridPineconeStore) -> None:
    hybrid.upsert(PASSAGES, VECTORS)
    assert ids(hybrid.keyword_search("apple", 5, filter={"page": {"$exists": False}})) == ["c"]
    with pytest.raises(InvalidQuery):
        hybrid.keyword_search("apple", 5, filter={"page": {"$like": 1}})


@pytest.mark.parametrize("query", ["", "   ", "the of", "?!"])
def test_a_query_without_known_words_finds_nothing(
    world: PineconeWorld, hybrid: HybridPineconeStore, query: str
) -> None:
    hybrid.upsert(PASSAGES, VECTORS)
    assert hybrid.keyword_search(query, 5) == []
    assert world.sent("/query") == []


def test_both_indexes_keep_in_step(world: PineconeWorld, hybrid: HybridPineconeStore) -> None:
    hybrid.upsert(PASSAGES, VECTORS)
    hybrid.write([(Passage("d", "date"), X)], delete=["a"])
    hybrid.delete(["b"])
    assert set(world.stored("passages")) == set(world.stored("words")) == {"c", "d"}


def test_a_passage_that_lost_its_words_leaves_the_word_index(
    world: PineconeWorld, hybrid: HybridPineconeStore
) -> None:
    hybrid.upsert(PASSAGES, VECTORS)
    hybrid.upsert([Passage("a", "the"), Passage("d", "")], [X, X])
    assert set(world.stored("passages")) == {"a", "b", "c", "d"}
    assert set(world.stored("words")) == {"b", "c"}


def test_texts_are_encoded_96_at_a_time_and_blank_ones_not_at_all(
    world: PineconeWorld, hybrid: HybridPineconeStore
) -> None:
    passages = [Passage(str(n), " " if n % 10 == 0 else f"word{n}") for n in range(250)]
    hybrid.upsert(passages, [X] * 250)
    sent = world.sent("/embed")
    assert max(len(body["inputs"]) for body in sent) <= 96
    assert sum(len(body["inputs"]) for body in sent) == 225
    assert all(body["parameters"] == {"input_type": "passage", "truncate": "END"} for body in sent)
    hybrid.keyword_search("word7", 1)
    assert world.sent("/embed")[-1]["parameters"]["input_type"] == "query"


def test_sparse_vectors_of_long_texts_go_in_requests_within_the_limit(world: PineconeWorld) -> None:
    def encoder(texts: Sequence[str], kind: str) -> list[tuple[list[int], list[float]]]:
        return [(list(range(2_048)), [0.123456789012345] * 2_048) for _ in texts]

    leg = SparsePineconeStore(world.index("words"), encoder)
    leg.upsert([Passage(str(n), "ä" * 10_000) for n in range(120)], [()] * 120)
    requests = [one for one in world.exchanges if one.path == "/vectors/upsert"]
    assert max(len(one.body) for one in requests) <= 2_000_000
    assert leg.count() == 120


def test_another_sparse_model_is_refused(world: PineconeWorld, hybrid: HybridPineconeStore) -> None:
    hybrid.upsert(PASSAGES, VECTORS)

    def another(texts: Sequence[str], kind: str) -> list[tuple[list[int], list[float]]]:
        return [([1], [1.0]) for _ in texts]

    with pytest.raises(StoreError, match=f"'{SPARSE}'.*another"):
        SparsePineconeStore(world.index("words"), another).search("apple", 1)


def test_an_index_of_dense_vectors_is_refused_for_words(world: PineconeWorld) -> None:
    with pytest.raises(StoreError, match="holds dense vectors"):
        SparsePineconeStore(world.index("passages"), PineconeSparseEncoder(world.client())).search(
            "apple", 1
        )


def test_a_dense_model_is_refused_for_words(world: PineconeWorld) -> None:
    leg = SparsePineconeStore(
        world.index("words"), PineconeSparseEncoder(world.client(), "test-embed")
    )
    with pytest.raises(
        StoreError, match=r"test-embed must give one sparse vector per text; set store\.sparseModel"
    ):
        leg.search("apple", 1)


def test_a_model_that_is_not_there_is_told(world: PineconeWorld) -> None:
    leg = SparsePineconeStore(world.index("words"), PineconeSparseEncoder(world.client(), "nobody"))
    with pytest.raises(StoreError, match=r"nobody could not be asked .*HTTP 404"):
        leg.upsert(PASSAGES, VECTORS)


@pytest.mark.parametrize(
    "made",
    [
        [],
        [([1], [1.0, 2.0])],
        [([-1], [1.0])],
        [([2**32], [1.0])],
        [([1], [float("nan")])],
        [(["a"], [1.0])],
    ],
)
def test_what_is_no_sparse_vector_is_refused(world: PineconeWorld, made: Any) -> None:
    leg = SparsePineconeStore(world.index("words"), lambda texts, kind: made)
    with pytest.raises(StoreError, match="the sparse encoder gave"):
        leg.upsert([Passage("a", "apple")], [()])
    assert world.stored("words") == {}


def test_of_more_words_than_pinecone_takes_the_weightiest_are_kept(world: PineconeWorld) -> None:
    made = [(list(range(3_000)), [float(n) for n in range(3_000)])]
    SparsePineconeStore(world.index("words"), lambda texts, kind: made).upsert(
        [Passage("a", "apple")], [()]
    )
    assert min(world.stored("words")["a"].sparse) == 3_000 - 2_048


def test_text_that_was_decoded_badly_is_searched_and_kept(
    hybrid: HybridPineconeStore, texts: PineconeTextStore
) -> None:
    for store in (hybrid, texts):
        store.upsert([Passage("a", "an \ud800 apple")], [X])
    assert [one["text"] for one in hybrid.keyword_search("\ud800 apple", 5)] == ["an \ufffd apple"]
    assert [one["text"] for one in texts.search("\ud800 apple", 5)] == ["an \ufffd apple"]


def test_a_word_index_is_searched_by_text_alone(words: SparsePineconeStore) -> None:
    with pytest.raises(StoreError, match="text"):
        words.search(X, 1)


def test_the_identity_is_of_both_indexes(world: PineconeWorld, hybrid: HybridPineconeStore) -> None:
    before = hybrid.identity
    assert before == hybrid.identity
    world.add_index("words", kind="sparse")
    leg = SparsePineconeStore(world.index("words"), PineconeSparseEncoder(world.client(), SPARSE))
    other = HybridPineconeStore(
        world.index("passages"), sparse=leg, embedding_model="a-model", dimension=3
    )
    assert other.identity != before


def test_a_sparse_index_that_embeds_by_itself_serves_as_the_word_search(
    world: PineconeWorld,
) -> None:
    words = PineconeTextStore(world.index("sparse-texts"))
    store = HybridPineconeStore(
        world.index("passages"), sparse=words, embedding_model="a-model", dimension=3
    )
    store.upsert(PASSAGES, VECTORS)
    assert ids(store.keyword_search("apple pie", 5)) == ["a", "c"]
    store.delete(["a"])
    assert ids(store.keyword_search("apple pie", 5)) == ["c"]


def test_closing_closes_both(hybrid: HybridPineconeStore) -> None:
    hybrid.close()
    hybrid.close()
    with pytest.raises(StoreError, match="closed"):
        hybrid.keyword_search("apple", 1)
    with pytest.raises(StoreError, match="closed"):
        hybrid.search(X, 1)


# Indexes that embed by themselves.


def test_an_index_that_embeds_is_written_and_searched_by_text(texts: PineconeTextStore) -> None:
    assert isinstance(texts, Store)
    assert not isinstance(texts, KeywordStore)
    assert texts.embeds
    texts.upsert(PASSAGES, [()] * 3)
    found = texts.search("banana", 2)
    assert found[0] == {"id": "b", "score": 1.0, "text": "banana", "metadata": {}}
    assert len(found) == 2
    assert ids(texts.search("apple", 5, filter={"page": 1})) == ["a"]
    assert texts.search("apple", 1, filter={"page": 1})[0]["metadata"] == {"page": 1}
    texts.write([(Passage("d", "date"), ())], delete=["a", "b"])
    assert texts.count() == 2


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(records=st.lists(TEXT, min_size=1, max_size=4))
def test_texts_come_back_from_an_index_that_embeds_as_they_went(
    texts: PineconeTextStore, records: list[str]
) -> None:
    texts.upsert(
        [Passage(str(n), text, {"of": text}) for n, text in enumerate(records)], [()] * len(records)
    )
    found = {
        one["id"]: (one["text"], one["metadata"]["of"]) for one in texts.search("anything", 10)
    }
    assert found == {str(n): (text, text) for n, text in enumerate(records)}
    texts.delete(list(found))


def test_texts_go_96_at_a_time_within_the_limit(
    world: PineconeWorld, texts: PineconeTextStore
) -> None:
    texts.upsert([Passage(str(n), "ä" * 15_000) for n in range(300)], [()] * 300)
    requests = [one for one in world.exchanges if one.path.endswith("/upsert")]
    assert max(len(one.body) for one in requests) <= 2_000_000
    assert max(len(one.json) for one in requests) <= 96
    assert texts.count() == 300


@pytest.mark.parametrize("namespace", ["", "__default__"])
def test_the_default_namespace_is_named_to_an_index_that_embeds(
    world: PineconeWorld, namespace: str
) -> None:
    store = PineconeTextStore(world.index("texts"), namespace=namespace, text_field="chunk")
    store.upsert(PASSAGES, [()] * 3)
    assert len(store.search("apple", 5)) == store.count() == 3
    assert world.exchanges[-2].path == "/records/namespaces/__default__/search"


def test_an_index_that_embeds_is_searched_by_text_alone(texts: PineconeTextStore) -> None:
    with pytest.raises(StoreError, match="text"):
        texts.search(X, 1)
    assert texts.search("  ", 5) == []
    assert texts.search("apple", 0) == []


@pytest.mark.parametrize("key", ["id", "_id", "chunk"])
def test_the_names_of_a_records_own_fields_are_refused_in_metadata(
    texts: PineconeTextStore, key: str
) -> None:
    with pytest.raises(StoreError, match=f"'{key}'"):
        texts.upsert([Passage("a", "apple", {key: "x"})], [()])


def test_an_index_that_does_not_embed_is_told(world: PineconeWorld) -> None:
    store = PineconeTextStore(world.index("passages"))
    with pytest.raises(StoreError, match="HTTP 400"):
        store.upsert(PASSAGES, [()] * 3)


def test_the_identity_of_an_index_that_embeds_stays(
    world: PineconeWorld, texts: PineconeTextStore
) -> None:
    again = PineconeTextStore(world.index("texts"), text_field="chunk")
    assert texts.identity == again.identity
    assert texts.count() == 0


# Indexes taken for another kind.


def test_an_index_that_does_not_embed_is_told_from_one_that_does(world: PineconeWorld) -> None:
    store = PineconeTextStore(world.index("passages"))
    for use in (lambda: store.search("apple", 1), lambda: store.upsert(PASSAGES, [()] * 3)):
        with pytest.raises(
            StoreError, match=r"HTTP 400.*store\.integrated.*'text'.*store\.textField"
        ):
            use()


def test_own_vectors_and_those_of_the_index_do_not_mix(world: PineconeWorld) -> None:
    vectors = [[1.0] * 16] * 3
    own = PineconeStore(
        world.index("texts"), embedding_model="a-model", dimension=16, namespace="own"
    )
    own.upsert(PASSAGES, vectors)
    wrong = PineconeTextStore(world.index("texts"), text_field="chunk", namespace="own")
    with pytest.raises(
        StoreError, match=r"made with the embedding model 'a-model' \(16.*by the index itself"
    ):
        wrong.search("apple", 1)
    with pytest.raises(StoreError, match="mean different things"):
        wrong.upsert(PASSAGES, vectors)
    PineconeTextStore(world.index("texts"), text_field="chunk", namespace="integrated").upsert(
        PASSAGES, vectors
    )
    other = PineconeStore(
        world.index("texts"), embedding_model="a-model", dimension=16, namespace="integrated"
    )
    with pytest.raises(
        StoreError, match=r"made by the index itself \(store\.integrated\).*'a-model'"
    ):
        other.search([1.0] * 16, 1)


def test_another_sparse_model_is_refused_by_both_names(
    world: PineconeWorld, words: SparsePineconeStore
) -> None:
    words.upsert(PASSAGES, VECTORS)
    other = SparsePineconeStore(
        world.index("words"), PineconeSparseEncoder(world.client(), "another")
    )
    with pytest.raises(StoreError, match=f"'{SPARSE}', not with the embedding model 'another':"):
        other.search("apple", 1)
