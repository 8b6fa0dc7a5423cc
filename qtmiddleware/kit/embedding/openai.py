"""Embed texts with OpenAI, and with other services that have the same embeddings API."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import ConfigError, EmbeddingError, explain_client_errors
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.embedding import Vectors, read_vectors
from qtmiddleware.providers.errors import convert_client_error, read_status
from qtmiddleware.providers.openai_client import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    find_provider,
    is_async_client,
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
# OpenAI accepts 8,191 tokens per text. Bytes are counted instead of tokens, because OpenAI's
# tokenizer must download a table. In European languages, a token usually has three bytes or more.
_MOST_TEXT_BYTES: Final = 3 * 8_191
# The length in bytes up to which a text is not cut further: its length is not the real cause.
_SHORTEST: Final = 256
# Most services send no code for this error, only a sentence.
_TOO_LONG: Final = re.compile(
    r"context.?length|maximum input length|max_tokens_per_request|tokens per request|must have less"
    r" than|too (?:long|large|many tokens)|maximum allowed batch",
    re.IGNORECASE,
)


class OpenAIEmbedder:
    """Embeds texts through the ``openai`` client, in batches.

    An empty text is sent as one space. A text is cut to 24,573 bytes (about 8,191 tokens). If the
    service rejects a request as too large, its texts are sent in two requests, and a single text is
    cut in half. The client retries failed requests. Thread-safe.

    Args:
        model: The name of an embedding model, such as ``text-embedding-3-small``.
        client: An ``openai.OpenAI``, which is never closed or changed. By default, the embedder
            makes a client on first use with the key from ``OPENAI_API_KEY``. A user's own server
            needs no key.
        base_url: The address of the service; by default ``OPENAI_BASE_URL``, else the SDK's
            default.
        dimensions: The length of the vectors, for models that can shorten them. By default, the
            model chooses the length.
        batch_size: The maximum number of texts per request.
        timeout: The maximum time in seconds for one request, without its retries.

    Raises:
        ConfigError: The client is asynchronous.
        EmbeddingError: A call failed.
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        dimensions: int | None = None,
        batch_size: int = 256,
        timeout: float = 60.0,
    ) -> None:
        if is_async_client(client):
            raise ConfigError("the client must be synchronous; pass openai.OpenAI()", path="client")
        self.name = model
        """The model's name. It does not include the length of the vectors."""
        self._user_client = client
        self._base_url = base_url
        self._options = {"timeout": timeout} | ({"dimensions": dimensions} if dimensions else {})
        self._dimension = dimensions or _DIMENSIONS.get(model)
        self._batch_size = batch_size
        self._own_client = MadeOnce[Any]()

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self.name!r}, host={read_host(self._address)!r})"

    @property
    def provider(self) -> str:
        """The provider's name in OpenTelemetry; ``openai`` if the host is unknown."""
        return find_provider(read_host(self._address))

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port; ``None`` if the user's client does not show them."""
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
        for start in range(0, len(texts), self._batch_size):
            found = self._embed_batch(
                [
                    # The service rejects an empty text.
                    _cut(replace_surrogates(text[:_MOST_TEXT_BYTES]), _MOST_TEXT_BYTES) or " "
                    for text in texts[start : start + self._batch_size]
                ]
            )
            vectors.extend(found)
            vectors.input_tokens += found.input_tokens
        return vectors

    def close(self) -> None:
        """Close the client that the embedder made. The next use makes a new client."""
        self._own_client.close()

    def _embed_batch(self, batch: list[str]) -> Vectors:
        client = self._user_client or self._own_client.get(self._make_client)
        try:
            answer = client.embeddings.create(model=self.name, input=batch, **self._options)
        except Exception as error:
            status, middle = read_status(error), len(batch) // 2
            size = len(batch[0].encode())
            is_too_long = status in (400, 422) and _TOO_LONG.search(str(error))
            if status == 413 or is_too_long:
                if middle:
                    halves = self._embed_batch(batch[:middle]), self._embed_batch(batch[middle:])
                    return Vectors(halves[0] + halves[1], sum(it.input_tokens for it in halves))
                if size > _SHORTEST:
                    return self._embed_batch([_cut(batch[0], size // 2)])
            service = f"{self.name} at {read_host(self._address)}"
            known = convert_client_error(
                error, service, address="the base URL", timeout="the embedder's timeout"
            )
            raise EmbeddingError(str(known)) from None
        found = read_vectors(answer, len(batch), self.name, self._dimension)
        self._dimension = len(found[0])
        return found

    @property
    def _address(self) -> str:
        if self._user_client is not None:
            return str(getattr(self._user_client, "base_url", ""))
        return self._base_url or os.environ.get(SDK_ADDRESS_VARIABLE, "").strip() or DEFAULT_ADDRESS

    def _make_client(self) -> Any:
        address = self._address
        if address == DEFAULT_ADDRESS and not read_api_key():
            raise EmbeddingError(
                f"the key for the embedding model is missing: set {KEY_VARIABLE}, or"
                f" {SDK_ADDRESS_VARIABLE} (base_url) for a server that needs none"
            )
        with explain_client_errors(EmbeddingError):
            return make_client(is_async=False, address=address)


def _cut(text: str, max_bytes: int) -> str:
    # The cut may split a character, whose first bytes are then ignored.
    return text.encode()[:max_bytes].decode(errors="ignore")
