"""The store on Pinecone that the settings name, by the real client over real HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pinecone
import pytest

from qtmiddleware.config.settings import StoreSettings
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.stores.pinecone import PineconeStore, open_pinecone
from qtmiddleware.protocols import Passage
from tests.support.pinecone_world import PineconeWorld, pinecone_world, without_pauses

X = [1.0, 0.0, 0.0]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[PineconeWorld]:
    without_pauses(monkeypatch)
    with pinecone_world() as made:
        made.add_index("passages", dimension=3)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def opened(**options: Any) -> Any:
    return open_pinecone(
        StoreSettings(kind="pinecone", **options), embedding_model="a-model", dimension=3
    )


def test_an_index_is_opened_by_its_name(world: PineconeWorld) -> None:
    with opened(index="passages", namespace="n", text_field="body") as store:
        store.write(zip([Passage("a", "apple")], [X], strict=True))
        assert type(store) is PineconeStore
        assert [one["text"] for one in store.search(X, 1)] == ["apple"]
    assert world.stored("passages", "n")["a"].metadata == {"body": "apple"}


def test_an_index_is_opened_by_its_host_without_asking(world: PineconeWorld) -> None:
    with opened(host=world.host("passages"), index="ignored") as store:
        assert world.exchanges == []
        assert store.count() == 0


def test_closing_closes_what_was_opened_and_may_be_done_twice(world: PineconeWorld) -> None:
    store = opened(index="passages")
    store.count()
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.count()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_a_client_of_its_own(
    world: PineconeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers, make = list[int](), pinecone.Pinecone

    def made(**options: Any) -> Any:
        makers.append(os.getpid())
        return make(**options)

    monkeypatch.setattr(pinecone, "Pinecone", made)
    with opened(index="passages") as store:
        store.write(zip([Passage("a", "apple")], [X], strict=True))
        child = os.fork()
        if not child:
            try:
                found = [one["text"] for _ in range(2) for one in store.search(X, 1)]
                is_new = makers == [os.getppid(), os.getpid()]
                os._exit(0 if is_new and found == ["apple"] * 2 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (store.count(), makers) == (1, [os.getpid()])


@pytest.mark.parametrize("key", [None, "", "  "])
def test_without_a_key_the_variable_is_named(
    world: PineconeWorld, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.delenv("PINECONE_API_KEY")
    if key is not None:
        monkeypatch.setenv("PINECONE_API_KEY", key)
    with pytest.raises(StoreError, match="set PINECONE_API_KEY"):
        opened(index="passages")


@pytest.mark.parametrize("key", ["not-the-key", "schlüssel-geheim", "two words\x01"])
def test_a_wrong_key_is_told_and_not_shown(
    world: PineconeWorld, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("PINECONE_API_KEY", key)
    with pytest.raises(StoreError) as caught:
        opened(index="passages")
    assert key not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_an_index_that_is_not_there_is_told_by_name(world: PineconeWorld) -> None:
    with pytest.raises(StoreError, match=r"the Pinecone index 'nobody' cannot be used: .*HTTP 404"):
        opened(index="nobody")


@pytest.mark.parametrize("host", ["nowhere", "http://"])
def test_a_host_that_is_none_is_told(world: PineconeWorld, host: str) -> None:
    with pytest.raises(StoreError, match=host):
        opened(host=host)


def test_without_an_index_the_key_of_the_config_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        open_pinecone(StoreSettings(kind="pinecone"), embedding_model="m", dimension=3)
    assert caught.value.path == "store.index"
    assert "store.index" in str(caught.value)
