"""Embed texts with a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.providers.embedding import read_vectors
from qtmiddleware.providers.loading import cut_text, load_model
from qtmiddleware.runtime.forking import make_lock


class SentenceTransformersEmbedder:
    """Embeds texts with a sentence-transformers model.

    Vectors have length 1. If the model has a default prompt, it is used for questions and passages.
    The model cuts texts that are too long. It is loaded on first use, on the best device that
    torch finds, and downloaded if necessary.
    Code that comes with the model is never run. Thread-safe: one thread embeds at a time.

    Args:
        model: The model's name on the model hub, or its folder.
        dimensions: The length to which vectors are cut; by default, vectors are not cut. Set this
            only for models trained for shorter vectors (Matryoshka, Kusupati et al. 2022).

    Raises:
        MissingExtra: The extra ``models`` is missing at the first use.
        EmbeddingError: The model cannot be loaded, or a call failed.
    """

    def __init__(self, model: str, *, dimensions: int | None = None) -> None:
        self.name = model
        """The model's name or folder."""
        self._dimensions = self._dimension = dimensions
        self._lock = make_lock()
        self._model: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process loads the model itself.
        return partial(SentenceTransformersEmbedder, self.name, dimensions=self._dimensions), ()

    def __repr__(self) -> str:
        return f"SentenceTransformersEmbedder({self.name!r}, dimensions={self._dimensions})"

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        return self._dimension or len(self.embed(["dimension"])[0])

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*. An empty text also gets a vector."""
        if not texts:
            return []
        # The tokenizers fail if two threads use them at the same time.
        with self._lock:
            if self._model is None:
                self._model = load_model(
                    "SentenceTransformer",
                    self.name,
                    EmbeddingError,
                    trust_remote_code=False,
                    truncate_dim=self._dimensions,
                )
            try:
                returned = self._model.encode(
                    [cut_text(self._model, text) for text in texts],
                    show_progress_bar=False,
                    normalize_embeddings=True,
                )
            except Exception as error:
                raise EmbeddingError(
                    f"{self.name} failed on these texts: {type(error).__name__}"
                ) from error
        vectors = read_vectors(returned, len(texts), self.name, self._dimensions)
        self._dimension = len(vectors[0])
        return vectors
