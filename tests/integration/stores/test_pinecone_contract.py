"""What every store promises, kept by the one on Pinecone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from qtmiddleware.kit.stores.pinecone import PineconeStore
from tests.support.pinecone_world import PineconeWorld, pinecone_world
from tests.support.store_contract import TEXT, StoreContract

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
