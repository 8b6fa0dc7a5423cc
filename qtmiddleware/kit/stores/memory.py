"""A store in memory, which is gone once it is closed."""

from __future__ import annotations

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.stores.sqlite import SQLiteStore
from qtmiddleware.kit.stores.sqlite.files import MEMORY


class MemoryStore(SQLiteStore):
    """A `SQLiteStore` in memory: it is gone when it is closed, and the same in everything else.

    *dimension* is the length of every vector. Readers and writers take turns.
    """

    def __init__(self, *, embedding_model: str = "", dimension: int) -> None:
        super().__init__(MEMORY, embedding_model=embedding_model, dimension=dimension)

    def __repr__(self) -> str:
        return f"MemoryStore(dimension={self._dimension})"


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> MemoryStore:
    """Open the store for vectors of *embedding_model*; raises `StoreError`."""
    del settings  # A store in memory has no path.
    return MemoryStore(embedding_model=embedding_model, dimension=dimension)
