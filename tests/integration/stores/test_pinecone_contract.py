"""What every store promises, kept by those on Pinecone."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import pytest
from hypothesis import strategies as st

from qtmiddleware.kit.stores.passages import extract_index_words, extract_query_words
from qtmiddleware.kit.stores.pinecone import HybridPineconeStore, PineconeStore, SparsePineconeStore
from tests.support.pinecone_world import PineconeWorld, pinecone_world
from tests.support.store_contract import TEXT, KeywordContract, StoreContract

pytestmark = pytest.mark.thorough

IDS = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=40)
VALUES = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
METADATA = st.dictionaries(
    TEXT.filter(lambda key: not key.startswith("$") and key != "text"),
    VALUES | st.lists(TEXT, max_size=3),
    max_size=4,
)


def folded(word: str) -> str:
    parts = unicodedata.normalize("NFD", word.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def encoder(texts: Sequence[str], kind: str) -> list[tuple[list[int], list[float]]]:
    """Each word once, in every script."""
    made = []
    for text in texts:
        words = (
            extract_query_words(text)
            if kind == "query"
            else extract_index_words(text, "{}").split()
        )
        indices = {crc32(folded(word).encode()) for word in words}
        made.append((sorted(indices), [1.0] * len(indices)))
    return made


@pytest.fixture
def world() -> Iterator[PineconeWorld]:
    with pinecone_world() as made:
        yield made


def dense(world: PineconeWorld) -> Any:
    name = f"dense-{len(world.app.indexes)}"
    world.add_index(name, dimension=3)
    return world.index(name)


class TestDense(StoreContract):
    IDS = IDS
    METADATA = METADATA
    ZEROS = False

    @pytest.fixture
    def make_store(self, world: PineconeWorld) -> Callable[[], Any]:
        return lambda: PineconeStore(dense(world), embedding_model="model", dimension=3)


class TestWithWords(StoreContract, KeywordContract):
    IDS = IDS
    METADATA = METADATA
    ZEROS = False

    @pytest.fixture
    def make_store(self, world: PineconeWorld) -> Callable[[], Any]:
        def make() -> Any:
            name = f"words-{len(world.app.indexes)}"
            world.add_index(name, kind="sparse")
            leg = SparsePineconeStore(world.index(name), encoder)
            return HybridPineconeStore(
                dense(world), sparse=leg, embedding_model="model", dimension=3
            )

        return make
