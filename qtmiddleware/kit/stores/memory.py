"""A store that keeps nothing beyond its own life."""

from __future__ import annotations

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.stores.sqlite import SQLiteStore
from qtmiddleware.kit.stores.sqlite.files import MEMORY


class MemoryStore(SQLiteStore):
    """`SQLiteStore` in memory: gone when it is closed, the same in everything else.

    *dimension* is the length of every vector. Its readers and writers take turns.
    """

    def __init__(self, *, embedding_model: str = "", dimension: int) -> None:
        super().__init__(MEMORY, embedding_model=embedding_model, dimension=dimension)

    def __repr__(self) -> str:
        return f"MemoryStore(dimension={self._dimension})"


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> MemoryStore:
    """The store that *settings* describe, for vectors of *embedding_model*; raises `StoreError`."""
    del settings  # nothing of them says where memory is
    return MemoryStore(embedding_model=embedding_model, dimension=dimension)
