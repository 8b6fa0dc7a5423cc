"""Stores on Pinecone: dense by one's own embedder, with a sparse index for words, or embedding by itself."""

from __future__ import annotations

from qtmiddleware.stores.pinecone.dense import HybridPineconeStore, PineconeStore
from qtmiddleware.stores.pinecone.opening import open_pinecone
from qtmiddleware.stores.pinecone.sparse import PineconeSparseEncoder, SparseLeg
from qtmiddleware.stores.pinecone.text import PineconeTextStore

__all__ = [
    "HybridPineconeStore",
    "PineconeSparseEncoder",
    "PineconeStore",
    "PineconeTextStore",
    "SparseLeg",
    "open_pinecone",
]
