"""Opening an index, and bad days: what a person is told, that it comes to an end, and what is never told."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qtmiddleware.config.settings import StoreSettings
from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.pinecone import PineconeStore, open_pinecone
from qtmiddleware.protocols import Passage
from tests.support.pinecone_world import API_KEY, PineconeWorld, pinecone_world, without_pauses

X = [1.0, 0.0, 0.0]
SECRET = "the patient is called Jaco"
JSON = "application/json"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[PineconeWorld]:
    without_pauses(monkeypatch)
    with pinecone_world() as made:
        made.add_index("passages", dimension=3)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def opened(**options: Any) -> PineconeStore:
    settings = StoreSettings(kind="pinecone", **options)
    return open_pinecone(settings, embedding_model="a-model", dimension=3)


@pytest.fixture
def store(world: PineconeWorld) -> Iterator[PineconeStore]:
    with opened(index="passages") as made:
        made.write([(Passage("a", "apple"), X)])
        yield made


USES: dict[str, Callable[[PineconeStore], Any]] = {
    "/query": lambda store: store.search(X, 1, filter={"name": SECRET}),
    "/vectors/upsert": lambda store: store.write([(Passage("b", SECRET), X)]),
    "/vectors/delete": lambda store: store.write((), delete=["a"]),
    "/describe_index_stats": lambda store: store.count(),
}


def fail(use: Callable[[], Any], told: str) -> StoreError:
    with pytest.raises(StoreError, match=told) as caught:
        use()
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
    assert API_KEY not in "".join(traceback.format_exception(caught.value))
    return caught.value


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, "Invalid API Key", r"rejected the key; check PINECONE_API_KEY \(HTTP 401\)"),
        (403, "quota", "HTTP 403"),
        (400, SECRET, "rejected the request.*HTTP 400"),
        (429, "slow", "no more requests.*HTTP 429"),
        (500, SECRET, r"is not available; try again later \(HTTP 500\)"),
        (200, "{", "cannot be read"),
        (200, "null", "cannot be read"),
    ],
)
def test_a_bad_answer_is_told_in_a_sentence_with_its_cause(
    world: PineconeWorld,
    store: PineconeStore,
    status: int,
    body: str,
    told: str,
) -> None:
    for path, use in USES.items():
        world.answers(path, status, body, content_type=JSON if status == 200 else "text/plain")
        if status != 200 or path != "/vectors/delete":
            error = fail(lambda use=use: use(store), told)  # type: ignore[misc]
            assert "the Pinecone index" in str(error)
            assert error.__cause__ is not None


def test_the_clients_own_retries_are_the_only_ones_and_the_store_recovers(
    world: PineconeWorld,
) -> None:
    store = opened(index="passages")
    world.answers("/describe_index_stats", 503)
    before = len(world.exchanges)
    fail(lambda: store.write([(Passage("a", "apple"), X)]), "HTTP 503")
    assert len(world.exchanges) - before == 4
    world.recovers()
    store.write([(Passage("a", "apple"), X)])
    assert store.count() == 1


def test_an_index_is_opened_by_its_name_and_namespace(world: PineconeWorld) -> None:
    with opened(index="passages", namespace="n", text_field="body") as store:
        store.write([(Passage("a", "apple"), X)])
        assert [one["text"] for one in store.search(X, 1)] == ["apple"]
    assert world.stored("passages", "n")["a"].metadata == {"body": "apple"}
    store.close()
    fail(store.count, "closed")


def test_an_index_is_opened_by_its_host_without_asking(world: PineconeWorld) -> None:
    with opened(host=world.host("passages"), index="ignored") as store:
        assert world.exchanges == []
        assert store.count() == 0
    with opened(host=world.host("nobody")) as store:
        fail(store.count, r"no such index; check store.index and store.host \(HTTP 404\)")
    with opened(host="http://127.0.0.1:9") as store:
        fail(store.count, "cannot be reached")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"index": "nobody"}, r"the Pinecone index 'nobody' cannot be used: .*HTTP 404"),
        ({"host": "nowhere"}, "nowhere"),
        ({"host": "http://"}, "http://"),
    ],
)
def test_an_index_that_is_not_there_is_told_by_name(
    world: PineconeWorld,
    options: dict[str, Any],
    told: str,
) -> None:
    fail(lambda: opened(**options), told)


@pytest.mark.parametrize("key", ["not-the-key", "schlüssel-geheim", "two words\x01", "  "])
def test_a_wrong_or_missing_key_is_told_and_not_shown(
    world: PineconeWorld,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
) -> None:
    monkeypatch.setenv("PINECONE_API_KEY", key)
    told = "the Pinecone index" if key.strip() else "set PINECONE_API_KEY"
    error = fail(lambda: opened(index="passages"), told)
    assert not key.strip() or key not in f"{error!r} {error.__cause__!r}"
