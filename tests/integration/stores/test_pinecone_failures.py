"""Pinecone on bad days: what a person is told, that it comes to an end, and what is never told."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.pinecone import PineconeStore
from qtmiddleware.protocols import Passage
from tests.support.pinecone_world import API_KEY, PineconeWorld, pinecone_world, without_pauses

X = [1.0, 0.0, 0.0]
SECRET_TEXT = "the patient is called Jaco"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[PineconeWorld]:
    without_pauses(monkeypatch)
    with pinecone_world() as made:
        made.add_index("passages", dimension=3)
        yield made


@pytest.fixture
def store(world: PineconeWorld) -> PineconeStore:
    made = PineconeStore(world.index("passages"), embedding_model="a-model", dimension=3)
    made.write(zip([Passage("a", "apple")], [X], strict=True))
    return made


USES: dict[str, tuple[str, Callable[[PineconeStore], Any]]] = {
    "search": ("/query", lambda store: store.search(X, 1, filter={"name": SECRET_TEXT})),
    "upsert": (
        "/vectors/upsert",
        lambda store: store.write(zip([Passage("b", SECRET_TEXT)], [X], strict=True)),
    ),
    "delete": ("/vectors/delete", lambda store: store.write((), delete=["a"])),
    "count": ("/describe_index_stats", lambda store: store.count()),
}
each_use = pytest.mark.parametrize("use", USES)

BAD_DAYS: dict[str, tuple[dict[str, Any], str]] = {
    "unauthorized": (
        {"status": 401, "body": "Invalid API Key"},
        r"rejected the key; check PINECONE_API_KEY \(HTTP 401\)",
    ),
    "payment": ({"status": 402, "body": "pay"}, "HTTP 402"),
    "forbidden": ({"status": 403, "body": "quota"}, "HTTP 403"),
    "too large": ({"status": 413, "body": "too big"}, "too large .*413"),
    "rejected": ({"status": 400, "body": SECRET_TEXT}, "rejected the request.*HTTP 400"),
    "rate limited": (
        {"status": 429, "body": "slow", "headers": {"Retry-After": "1"}},
        "no more requests.*HTTP 429",
    ),
    "down": (
        {"status": 500, "body": SECRET_TEXT},
        r"is not available; try again later \(HTTP 500\)",
    ),
    "gateway": ({"status": 503, "body": "<html>", "content_type": "text/html"}, "HTTP 503"),
    "teapot": ({"status": 418, "body": "short and stout"}, "HTTP 418"),
}


def failure(use: Callable[[], Any]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        use()
    shown = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value)
    assert SECRET_TEXT not in shown
    assert API_KEY not in "".join(traceback.format_exception(caught.value))
    return caught.value


@each_use
@pytest.mark.parametrize("day", BAD_DAYS)
def test_a_bad_answer_is_told_in_a_sentence_with_its_cause(
    world: PineconeWorld, store: PineconeStore, use: str, day: str
) -> None:
    path, call = USES[use]
    answer, said = BAD_DAYS[day]
    world.answers(path, **answer)
    error = failure(lambda: call(store))
    assert re.search(said, str(error))
    assert "the Pinecone index 127.0.0.1" in str(error)
    assert error.__cause__ is not None


@pytest.mark.parametrize("use", ["search", "upsert", "count"])
@pytest.mark.parametrize(
    "body", ["{", "[]", "null", '{"matches": [{"id": 7}], "upsertedCount": "x", "namespaces": 1}']
)
def test_an_answer_that_cannot_be_read_is_told(
    world: PineconeWorld, store: PineconeStore, use: str, body: str
) -> None:
    path, call = USES[use]
    world.answers(path, 200, body, content_type="application/json")
    assert "cannot be read" in str(failure(lambda: call(store)))


def test_fewer_vectors_taken_than_sent_are_told(world: PineconeWorld, store: PineconeStore) -> None:
    world.answers("/vectors/upsert", 200, '{"upsertedCount": 1}', content_type="application/json")
    error = failure(
        lambda: store.write(zip([Passage("b", "x"), Passage("c", "y")], [X, X], strict=True))
    )
    assert "took 1 of 2 vectors" in str(error)


def test_no_index_at_that_address_is_told(world: PineconeWorld) -> None:
    index = world.client().Index(host=world.host("nobody"))
    with index:
        error = failure(PineconeStore(index, embedding_model="a-model", dimension=3).count)
    assert "knows no such index; check store.index and store.host (HTTP 404)" in str(error)


def test_nobody_at_that_address_is_told(world: PineconeWorld) -> None:
    with world.client().Index(host="http://127.0.0.1:9") as index:
        error = failure(PineconeStore(index, embedding_model="a-model", dimension=3).count)
    assert "cannot be reached" in str(error)


def test_a_failed_look_is_not_taken_for_an_answer(world: PineconeWorld) -> None:
    store = PineconeStore(world.index("passages"), embedding_model="a-model", dimension=3)
    world.answers("/describe_index_stats", 500)
    failure(lambda: store.write(zip([Passage("a", "apple")], [X], strict=True)))
    world.recovers()
    store.write(zip([Passage("a", "apple")], [X], strict=True))
    assert store.count() == 1


def test_the_clients_own_retries_are_the_only_ones(
    world: PineconeWorld, store: PineconeStore
) -> None:
    world.answers("/query", 503)
    failure(lambda: store.search(X, 1))
    assert sum(one.path == "/query" for one in world.exchanges) == 4
