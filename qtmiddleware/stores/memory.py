"""A store that keeps nothing beyond its own life."""

from __future__ import annotations

from qtmiddleware.stores.sqlite import SQLiteStore
from qtmiddleware.stores.sqlite.files import MEMORY


class MemoryStore(SQLiteStore):
    """`SQLiteStore` in memory: gone when it is closed, the same in everything else.

    *dimension* is the length of every vector. Its readers and writers take turns.
    """

    def __init__(self, *, embedding_model: str = "", dimension: int) -> None:
        super().__init__(MEMORY, embedding_model=embedding_model, dimension=dimension)

    def __repr__(self) -> str:
        return f"MemoryStore(dimension={self._dimension})"
