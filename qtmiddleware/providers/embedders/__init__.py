"""Connect embedding models, which turn texts into vectors."""

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


def query_embedder(function_or_model: Any) -> CallableEmbedder:
    """Return an embedder that embeds questions by calling *function_or_model*.

    *function_or_model* is a `CallableEmbedder`, or any function or object that `CallableEmbedder`
    accepts. Raises `WrapError` for anything else.
    """
    return (
        function_or_model.queries
        if isinstance(function_or_model, CallableEmbedder)
        else CallableEmbedder(function_or_model, for_queries=True)
    )
