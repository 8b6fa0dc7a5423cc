"""Run embedding models, and find the embedder for a model's name."""

from __future__ import annotations

from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.embedding.minilm import MODEL_NAME, MiniLMEmbedder
from qtmiddleware.kit.embedding.openai import OpenAIEmbedder
from qtmiddleware.kit.embedding.sentence_transformers import SentenceTransformersEmbedder
from qtmiddleware.protocols import Embedder

__all__ = ["MiniLMEmbedder", "OpenAIEmbedder", "SentenceTransformersEmbedder", "find_embedder"]

_OPENAI: Final = "openai/"


def find_embedder(model_name: str, *, dimensions: int | None = None) -> Embedder:
    """Return an embedder that uses the model *model_name*.

    - ``all-MiniLM-L6-v2`` runs on this machine with numpy.
    - ``text-embedding-...`` and ``openai/...`` run at OpenAI, or on the server at
      ``OPENAI_BASE_URL``.
    - Any other name is a folder, or a model on the Hugging Face hub. Its model runs on this machine
      with sentence-transformers.

    The model is loaded on first use. *dimensions* is the length of the vectors, for models that can
    shorten them. Raises `ConfigError` if the built-in model has no vectors of *dimensions* numbers.
    """
    if model_name.removeprefix("sentence-transformers/") == MODEL_NAME:
        embedder = MiniLMEmbedder()
        if dimensions not in (None, embedder.dimension):
            allowed = f"null or {embedder.dimension}"
            raise ConfigError(
                f"embeddingDimensions must be {allowed} for {MODEL_NAME}, not {dimensions}",
                path="embeddingDimensions",
                value=dimensions,
                allowed=allowed,
            )
        return embedder
    if model_name.startswith((_OPENAI, "text-embedding-")):
        return OpenAIEmbedder(model_name.removeprefix(_OPENAI), dimensions=dimensions)
    return SentenceTransformersEmbedder(model_name, dimensions=dimensions)
