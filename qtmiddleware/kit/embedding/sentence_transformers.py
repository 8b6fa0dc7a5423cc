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

    Vectors are normalised to length 1. If the model has a default prompt, the prompt is used for
    questions and for passages. The model cuts texts that are too long.

    The model is loaded on first use, and downloaded if necessary. Thread-safe: one thread embeds at
    a time, because the tokenizers cannot be shared.

    Args:
        model: The model's name on the model hub, or its folder.
        device: The torch device (``cpu``, ``cuda``, ...); by default the best available.
        batch_size: The number of texts per batch.
        trust_remote_code: Whether to run code that comes with the model. Some models need their own
            code.
        dimensions: The length to which vectors are cut; by default, vectors are not cut. Set this
            only for models trained for shorter vectors (Matryoshka, Kusupati et al. 2022).

    Raises:
        MissingExtra: The extra ``models`` is missing at the first use.
        EmbeddingError: The model cannot be loaded, or a call failed.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str | None = None,
        batch_size: int = 32,
        trust_remote_code: bool = False,
        dimensions: int | None = None,
    ) -> None:
        self._name = model
        self._device = device
        self._batch_size = max(1, batch_size)
        self._trust = trust_remote_code
        self._dimensions = dimensions
        self._dimension = dimensions
        self._lock = make_lock()
        self._model: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Only the arguments are pickled: another process loads the model itself.
        options: dict[str, Any] = {
            "device": self._device,
            "batch_size": self._batch_size,
            "trust_remote_code": self._trust,
            "dimensions": self._dimensions,
        }
        return partial(SentenceTransformersEmbedder, self._name, **options), ()

    def __repr__(self) -> str:
        return f"SentenceTransformersEmbedder({self._name!r}, dimensions={self._dimensions})"

    @property
    def name(self) -> str:
        """The model's name or folder."""
        return self._name

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*. An empty text also gets a vector."""
        if not texts:
            return []
        # The tokenizers fail if two threads use them at the same time.
        with self._lock:
            model = self._load_model_once()
            try:
                returned = model.encode(
                    [cut_text(model, text) for text in texts],
                    batch_size=self._batch_size,
                    show_progress_bar=False,
                    normalize_embeddings=True,
                )
            except Exception as error:
                raise EmbeddingError(
                    f"{self._name} failed on these texts: {type(error).__name__}"
                ) from error
        vectors = read_vectors(returned, len(texts), self._name, self._dimension)
        self._dimension = len(vectors[0])
        return vectors

    def _load_model_once(self) -> Any:
        """Return the model. The first call loads the model; meanwhile, other threads wait."""
        if self._model is None:
            self._model = load_model(
                "SentenceTransformer",
                self._name,
                EmbeddingError,
                device=self._device,
                trust_remote_code=self._trust,
                truncate_dim=self._dimensions,
            )
        return self._model
