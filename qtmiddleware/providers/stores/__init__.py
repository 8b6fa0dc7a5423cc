"""Stores: where passages are kept with their vectors."""

from __future__ import annotations

from qtmiddleware.providers.stores.lancedb import LanceDBStore
from qtmiddleware.providers.stores.memory import MemoryStore
from qtmiddleware.providers.stores.pinecone import (
    HybridPineconeStore,
    PineconeSparseEncoder,
    PineconeStore,
    PineconeTextStore,
    SparsePineconeStore,
    open_pinecone,
)
from qtmiddleware.providers.stores.sqlite import SQLiteStore

__all__ = [
    "HybridPineconeStore",
    "LanceDBStore",
    "MemoryStore",
    "PineconeSparseEncoder",
    "PineconeStore",
    "PineconeTextStore",
    "SQLiteStore",
    "SparsePineconeStore",
    "open_pinecone",
]
