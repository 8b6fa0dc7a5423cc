"""Store passages and their vectors in SQLite, Pinecone or memory."""

from __future__ import annotations

from qtmiddleware.kit.stores.pinecone import PineconeStore, open_pinecone
from qtmiddleware.kit.stores.sqlite import MemoryStore, SQLiteStore

__all__ = ["MemoryStore", "PineconeStore", "SQLiteStore", "open_pinecone"]
