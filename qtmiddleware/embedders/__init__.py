"""Embedders: what turns texts into vectors."""

from __future__ import annotations

from typing import Final

from qtmiddleware.embedders.callable import CallableEmbedder
from qtmiddleware.embedders.minilm import MODEL_NAME, MiniLMEmbedder
from qtmiddleware.errors import ConfigError
from qtmiddleware.ports import Embedder

__all__ = ["CallableEmbedder", "MiniLMEmbedder", "embedder_named"]

_NAMES: Final = (MODEL_NAME, f"sentence-transformers/{MODEL_NAME}")


def embedder_named(name: str) -> Embedder:
    """The embedder for a model's *name*; nothing is loaded before its first use.

    Raises `ConfigError` for a name that is not known here.
    """
    if name in _NAMES:
        return MiniLMEmbedder()
    raise ConfigError(
        f"no embedding model {name!r} is known; known are {' and '.join(_NAMES)}. "
        "Any other can be used through a function from texts to vectors: CallableEmbedder(fn, name=...)",
        path="embeddingModel",
        value=name,
        allowed=", ".join(_NAMES),
    )
