"""Stores on Pinecone: dense by one's own embedder, with a sparse index for words, or embedding by itself."""

from __future__ import annotations

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Store
from qtmiddleware.providers.stores.pinecone.dense import HybridPineconeStore, PineconeStore
from qtmiddleware.providers.stores.pinecone.opening import open_pinecone
from qtmiddleware.providers.stores.pinecone.sparse import PineconeSparseEncoder, SparseLeg
from qtmiddleware.providers.stores.pinecone.text import PineconeTextStore

__all__ = [
    "HybridPineconeStore",
    "PineconeSparseEncoder",
    "PineconeStore",
    "PineconeTextStore",
    "SparseLeg",
    "open_pinecone",
    "open_store",
]


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> Store:
    """The store that *settings* describe, for vectors of *embedding_model*; raises `StoreError`."""
    return open_pinecone(settings.store, embedding_model=embedding_model, dimension=dimension)
