"""Store passages and vectors in memory, until the store is closed."""

from __future__ import annotations

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.stores.sqlite import SQLiteStore
from qtmiddleware.kit.stores.sqlite.files import MEMORY


class MemoryStore(SQLiteStore):
    """A store in memory, without a file. Closing the store deletes its content.

    *embedding_model* is the model of all vectors, and *dimension* is their length. Only one thread
    at a time can read or write.
    """

    def __init__(self, *, embedding_model: str = "", dimension: int) -> None:
        super().__init__(MEMORY, embedding_model=embedding_model, dimension=dimension)

    def __repr__(self) -> str:
        return f"MemoryStore(dimension={self._dimension})"


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> MemoryStore:
    """Open a store in memory for vectors of *embedding_model*."""
    del settings  # A store in memory has no path.
    return MemoryStore(embedding_model=embedding_model, dimension=dimension)
