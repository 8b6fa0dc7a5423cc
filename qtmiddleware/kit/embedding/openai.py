"""Embed texts with OpenAI, and with other services that have the same embeddings API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import EmbeddingError, explain_client_errors
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.embedding import Vectors, read_vectors
from qtmiddleware.providers.errors import convert_client_error
from qtmiddleware.providers.openai_client import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    find_provider,
    make_client,
    read_api_key,
    read_host,
    read_host_and_port,
)
from qtmiddleware.runtime.forking import MadeOnce

_DIMENSIONS: Final = {
    "text-embedding-3-small": 1_536,
    "text-embedding-3-large": 3_072,
    "text-embedding-ada-002": 1_536,
}
_BATCH: Final = 64
# The maximum time in seconds for one request, without its retries.
_TIMEOUT: Final = 60.0


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
    def provider(self) -> str:
        """The provider's name in OpenTelemetry; ``openai`` if the host is unknown."""
        return find_provider(read_host(self._address))

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port."""
        return read_host_and_port(self._address)

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        return self._dimension or len(self.embed(["dimension"])[0])

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        Raises `EmbeddingError` on failure.
        """
        vectors = Vectors()
        for start in range(0, len(texts), _BATCH):
            # The service rejects an empty text.
            batch = [replace_surrogates(text) or " " for text in texts[start : start + _BATCH]]
            found = self._embed_batch(batch)
            vectors.extend(found)
            vectors.input_tokens += found.input_tokens
        return vectors

    def close(self) -> None:
        """Close the client. The next use makes a new one."""
        self._client.close()

    def _embed_batch(self, batch: list[str]) -> Vectors:
        client = self._client.get(self._make_client)
        try:
            answer = client.embeddings.create(
                model=self.name, input=batch, timeout=_TIMEOUT, **self._options
            )
        except Exception as error:
            service = f"{self.name} at {read_host(self._address)}"
            known = convert_client_error(
                error, service, address="the base URL", timeout="the embedder's timeout"
            )
            raise EmbeddingError(str(known)) from None
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
            return make_client(is_async=False, address=self._address)
