"""The store on Pinecone that the settings name, by the real client over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from qtmiddleware.config.kit_settings import StoreSettings
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.stores.pinecone import (
    HybridPineconeStore,
    PineconeStore,
    PineconeTextStore,
    open_pinecone,
)
from qtmiddleware.protocols import KeywordStore, Passage
from tests.support.pinecone_world import API_KEY, PineconeWorld, pinecone_world, without_pauses

X = [1.0, 0.0, 0.0]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[PineconeWorld]:
    without_pauses(monkeypatch)
    with pinecone_world() as made:
        made.add_index("passages", dimension=3)
        made.add_index("words", kind="sparse")
        made.add_index("texts", dimension=16, model="test-embed", text_field="chunk")
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def opened(**options: Any) -> Any:
    return open_pinecone(
        StoreSettings(kind="pinecone", **options), embedding_model="a-model", dimension=3
    )


def test_an_index_is_opened_by_its_name(world: PineconeWorld) -> None:
    with opened(index="passages", namespace="n", text_field="body") as store:
        store.upsert([Passage("a", "apple")], [X])
        assert type(store) is PineconeStore
        assert [one["text"] for one in store.search(X, 1)] == ["apple"]
    assert world.stored("passages", "n")["a"].metadata == {"body": "apple"}


def test_an_index_is_opened_by_its_host_without_asking(world: PineconeWorld) -> None:
    with opened(host=world.host("passages"), index="ignored") as store:
        assert world.exchanges == []
        assert store.count() == 0


def test_name_and_host_are_the_same_store(world: PineconeWorld) -> None:
    with opened(index="passages") as by_name, opened(host=world.host("passages")) as by_host:
        assert by_name.identity == by_host.identity


@pytest.mark.parametrize("by_host", [False, True])
def test_a_second_index_gives_the_word_search(world: PineconeWorld, by_host: bool) -> None:
    second = {"sparse_host": world.host("words")} if by_host else {"sparse_index": "words"}
    with opened(index="passages", namespace="n", text_field="body", **second) as store:
        assert isinstance(store, HybridPineconeStore)
        assert isinstance(store, KeywordStore)
        store.upsert([Passage("a", "apple pie"), Passage("b", "banana")], [X, X])
        assert [one["text"] for one in store.keyword_search("banana", 5)] == ["banana"]
    assert set(world.stored("words", "n")) == {"a", "b"}


def test_an_index_that_embeds_is_opened(world: PineconeWorld) -> None:
    settings = StoreSettings(kind="pinecone", index="texts", integrated=True, text_field="chunk")
    with open_pinecone(settings, embedding_model="", dimension=0) as store:  # type: ignore[attr-defined]
        assert isinstance(store, PineconeTextStore)
        store.upsert([Passage("a", "apple")], [()])
        assert store.search("apple", 1)[0]["text"] == "apple"


def test_closing_closes_what_was_opened_and_may_be_done_twice(world: PineconeWorld) -> None:
    store = opened(index="passages", sparse_index="words")
    store.count()
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.count()


@pytest.mark.parametrize("key", [None, "", "  "])
def test_without_a_key_the_variable_is_named(
    world: PineconeWorld, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.delenv("PINECONE_API_KEY")
    if key is not None:
        monkeypatch.setenv("PINECONE_API_KEY", key)
    with pytest.raises(StoreError, match="set PINECONE_API_KEY"):
        opened(index="passages")


def test_blanks_around_the_key_do_no_harm(
    world: PineconeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINECONE_API_KEY", f" {API_KEY}\n")
    with opened(index="passages") as store:
        assert store.count() == 0


@pytest.mark.parametrize("key", ["not-the-key", "schlüssel-geheim", "two words\x01"])
def test_a_wrong_key_is_told_and_not_shown(
    world: PineconeWorld, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("PINECONE_API_KEY", key)
    with pytest.raises(StoreError) as caught:
        opened(index="passages")
    assert key not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_an_index_that_is_not_there_is_told_by_name(world: PineconeWorld) -> None:
    with pytest.raises(
        StoreError, match=r"the Pinecone index 'nobody' could not be opened: .*HTTP 404"
    ):
        opened(index="nobody")
    with pytest.raises(
        StoreError, match=r"the Pinecone index 'none' could not be opened: .*HTTP 404"
    ):
        opened(index="passages", sparse_index="none")


@pytest.mark.parametrize("host", ["nowhere", "http://"])
def test_a_host_that_is_none_is_told(world: PineconeWorld, host: str) -> None:
    with pytest.raises(StoreError, match=host):
        opened(host=host)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "store.index"),
        ({"sparse_index": "words"}, "store.index"),
        ({"index": "texts", "integrated": True, "sparse_index": "words"}, "store.sparseIndex"),
        ({"index": "texts", "integrated": True, "sparse_host": "a.b"}, "store.sparseHost"),
    ],
)
def test_options_that_do_not_go_together_name_their_key(options: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_pinecone(
            replace(StoreSettings(kind="pinecone"), **options), embedding_model="m", dimension=3
        )
    assert caught.value.path == path
    assert path in str(caught.value)


def test_the_key_is_nowhere_to_be_seen(world: PineconeWorld) -> None:
    with opened(index="passages", sparse_index="words") as store:
        assert API_KEY not in f"{store!r} {store.identity} {vars(store)}"
