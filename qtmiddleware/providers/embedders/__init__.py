"""Embedders: models that turn texts into vectors."""

from __future__ import annotations

from typing import Any

from qtmiddleware.providers.embedders.callable import CallableEmbedder
from qtmiddleware.providers.embedders.openai import OpenAIEmbedder
from qtmiddleware.providers.embedders.sentence_transformers import SentenceTransformersEmbedder

__all__ = [
    "CallableEmbedder",
    "OpenAIEmbedder",
    "SentenceTransformersEmbedder",
    "query_embedder",
]


def query_embedder(given: Any) -> CallableEmbedder:
    """Return *given* as an embedder of questions.

    *given* is a `CallableEmbedder`, or any function or object that `CallableEmbedder` accepts.
    Raises `WrapError` for anything else.
    """
    return (
        given.queries
        if isinstance(given, CallableEmbedder)
        else CallableEmbedder(given, for_queries=True)
    )
