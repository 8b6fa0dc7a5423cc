"""Find the embedder for a model's name: the built-in model, OpenAI or sentence-transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ConfigError, EmbeddingError, explain_client_errors
from qtmiddleware.kit.embedding.minilm import MODEL_NAME, MiniLMEmbedder
from qtmiddleware.protocols import Embedder
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.embedding import read_vectors
from qtmiddleware.providers.errors import convert_client_error
from qtmiddleware.providers.llms import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    read_api_key,
)
from qtmiddleware.providers.llms.openai import build_client_options, read_host
from qtmiddleware.providers.rerankers import cut_text, load_model
from qtmiddleware.runtime.forking import MadeOnce, make_lock

_DIMENSIONS: Final = {
    "text-embedding-3-small": 1_536,
    "text-embedding-3-large": 3_072,
    "text-embedding-ada-002": 1_536,
}
_BATCH: Final = 64
# The maximum time in seconds for one request, without its retries.
_TIMEOUT: Final = 60.0


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
            raise ConfigError(
                f"embeddingDimensions must be 384 for {MODEL_NAME}, not {dimensions}",
                path="embeddingDimensions",
                value=dimensions,
                allowed="null or 384",
            )
        return embedder
    if model_name.startswith(("openai/", "text-embedding-")):
        return OpenAIEmbedder(model_name.removeprefix("openai/"), dimensions=dimensions)
    return SentenceTransformersEmbedder(model_name, dimensions=dimensions)


class OpenAIEmbedder:
    """Embeds texts through the ``openai`` client, 64 per request.

    The client is made on first use, for the service at ``OPENAI_BASE_URL`` and with the key from
    ``OPENAI_API_KEY``, which a user's own server does not need. It retries failed requests. An
    empty text is sent as one space. Thread-safe.

    Args:
        model: The name of an embedding model, such as ``text-embedding-3-small``.
        dimensions: The length of the vectors, for models that can shorten them. By default, the
            model chooses the length.

    Raises:
        EmbeddingError: A call failed.
    """

    provider = "openai"

    def __init__(self, model: str, *, dimensions: int | None = None) -> None:
        self.name = model
        """The model's name. It does not include the length of the vectors."""
        self._options = {"dimensions": dimensions} if dimensions else {}
        self._dimension = dimensions or _DIMENSIONS.get(model)
        self._address = os.environ.get(SDK_ADDRESS_VARIABLE, "").strip() or DEFAULT_ADDRESS
        self._client = MadeOnce[Any]()

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self.name!r}, host={read_host(self._address)!r})"

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        return self._dimension or len(self.embed(["dimension"])[0])

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*, or raise `EmbeddingError`."""
        vectors: list[list[float]] = []
        for start in range(0, len(texts), _BATCH):
            # The service rejects an empty text.
            batch = [replace_surrogates(text) or " " for text in texts[start : start + _BATCH]]
            vectors += self._embed_batch(batch)
        return vectors

    def close(self) -> None:
        """Close the client. The next use makes a new one."""
        self._client.close()

    def _embed_batch(self, batch: list[str]) -> list[list[float]]:
        client = self._client.get(self._make_client)
        try:
            answer = client.embeddings.create(
                model=self.name, input=batch, timeout=_TIMEOUT, **self._options
            )
        except Exception as error:
            service = f"{self.name} at {read_host(self._address)}"
            raise EmbeddingError(str(convert_client_error(error, service))) from None
        found = read_vectors(answer, len(batch), self.name, self._dimension)
        self._dimension = len(found[0])
        return found

    def _make_client(self) -> Any:
        if self._address == DEFAULT_ADDRESS and not read_api_key():
            raise EmbeddingError(
                f"the key for the embedding model is missing: set {KEY_VARIABLE}, or"
                f" {SDK_ADDRESS_VARIABLE} for a server that needs none"
            )
        with explain_client_errors(EmbeddingError):
            import openai

            return openai.OpenAI(**build_client_options(openai.DefaultHttpxClient, self._address))


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
