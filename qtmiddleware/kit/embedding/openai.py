"""Embed texts with OpenAI, and with other services that have the same embeddings API.

OpenAI accepts 2,048 texts and 300,000 tokens per request, and 8,191 tokens per text. This module
counts bytes instead of tokens, because OpenAI's tokenizer must download a table. A token is at
least one byte of UTF-8, so a request of 300,000 bytes is never too large. In European languages, a
token is usually three bytes or more, so a text of 24,573 bytes nearly always fits.

If the service still rejects a request as too long, the embedder splits the request in half. If the
request has only one text, the embedder cuts the text in half. The other texts of a request never
change where a text is cut.
"""

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
from qtmiddleware.runtime.forking import leave_to_parent, make_lock, register_fork_reset

_DIMENSIONS: Final = {
    "text-embedding-3-small": 1_536,
    "text-embedding-3-large": 3_072,
    "text-embedding-ada-002": 1_536,
}
_FIXED: Final = "text-embedding-ada-002"
"""The model that cannot shorten its vectors."""
_MOST_TEXTS: Final = 2_048
_MOST_REQUEST_BYTES: Final = 300_000
_LONGEST: Final = 3 * 8_191
"""The maximum length of a text in bytes. Longer texts are cut."""
_SHORTEST: Final = 256
"""The length in bytes up to which a text is not cut further.

If the service rejects such a short text as too long, the length is not the real cause.
"""
# Most services send no code for this error, only a sentence.
_TOO_LONG: Final = re.compile(
    r"context.?length|maximum input length|max_tokens_per_request|tokens per request|must have less"
    r" than|too (?:long|large|many tokens)|maximum allowed batch",
    re.IGNORECASE,
)


class OpenAIEmbedder:
    """Embeds texts through the ``openai`` client, in batches within the service's limits.

    The service rejects empty texts, so an empty text is sent as one space. A text is cut to 24,573
    bytes (about 8,191 tokens). If the service still rejects the text as too long, the embedder cuts
    the text in half, repeatedly if necessary. The client retries failed requests. Thread-safe.

    Args:
        model: The name of an embedding model, such as ``text-embedding-3-small``.
        client: An ``openai.OpenAI``, which is never closed or changed. By default, the embedder
            makes a client on first use with the key from ``OPENAI_API_KEY``. A user's own server
            needs no key.
        base_url: The address of the service; by default ``OPENAI_BASE_URL``, else the SDK's
            default.
        dimensions: The length of the vectors, for models that can shorten them. By default, the
            model chooses the length.
        batch_size: The maximum number of texts per request, up to 2,048.
        timeout: The maximum time in seconds for one request, without its retries.

    Raises:
        ConfigError: The model does not support *dimensions*.
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
        longest = _DIMENSIONS.get(model)
        if dimensions is not None and longest is not None:
            _check_dimensions(model, dimensions, longest)
        self._model = model
        self._user_client = client
        self._base_url = base_url
        self._lock = make_lock()
        self._made_client: Any = None
        self._dimensions = dimensions
        self._dimension = dimensions or longest
        self._batch_size = max(1, batch_size)
        self._timeout = timeout
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Leave the client to the parent process after a fork."""
        leave_to_parent(self._made_client)
        self._made_client = None

    def __repr__(self) -> str:
        return (
            f"OpenAIEmbedder({self._model!r}, dimensions={self._dimensions}, host={self._host!r})"
        )

    @property
    def name(self) -> str:
        """The model's name. It does not include the length of the vectors."""
        return self._model

    @property
    def provider(self) -> str:
        """The provider's name in OpenTelemetry; ``openai`` if the host is unknown."""
        return find_provider(self._host)

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port; ``None`` if the user's client does not show them."""
        return read_host_and_port(self._address)

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        Raises `EmbeddingError` on failure.
        """
        vectors = Vectors()
        for batch in group_texts(texts, self._batch_size):
            self._embed_batch(batch, vectors)
        return vectors

    def close(self) -> None:
        """Close the client that the embedder made. The next use makes a new client."""
        with self._lock:
            client, self._made_client = self._made_client, None
        if client is not None:
            client.close()

    @property
    def _host(self) -> str:
        """The server's host, without path, user or password."""
        return read_host(self._address)

    @property
    def _address(self) -> str:
        if self._user_client is not None:
            return str(getattr(self._user_client, "base_url", ""))
        return self._base_url or os.environ.get(SDK_ADDRESS_VARIABLE, "").strip() or DEFAULT_ADDRESS

    def _choose_client(self) -> Any:
        if self._user_client is not None:
            return self._user_client
        with self._lock:
            if self._made_client is None:
                address = self._address
                if address == DEFAULT_ADDRESS and not read_api_key():
                    raise EmbeddingError(
                        f"the key for the embedding model is missing: set {KEY_VARIABLE}, or"
                        f" {SDK_ADDRESS_VARIABLE} (base_url) for a server that needs none"
                    )
                with explain_client_errors(EmbeddingError):
                    self._made_client = make_client(is_async=False, address=address)
            return self._made_client

    def _embed_batch(self, texts: list[str], vectors: Vectors) -> None:
        """Append the vectors of *texts*. Split a request that the service rejects as too long."""
        client = self._choose_client()
        shorter = {} if self._dimensions is None else {"dimensions": self._dimensions}
        smaller_batches = []
        try:
            answer = client.embeddings.create(
                model=self._model, input=texts, timeout=self._timeout, **shorter
            )
        except Exception as error:
            smaller_batches = _halve_texts(texts) if _is_length_error(error) else []
            if not smaller_batches:
                service = f"{self._model} at {self._host}"
                service_error = convert_client_error(
                    error, service, address="the base URL", timeout="the embedder's timeout"
                )
                raise EmbeddingError(str(service_error)) from None
        for batch in smaller_batches:
            self._embed_batch(batch, vectors)
        if not smaller_batches:
            found = read_vectors(answer, len(texts), self._model, self._dimension)
            self._dimension = len(found[0])
            vectors.extend(found)
            vectors.input_tokens += found.input_tokens


def _check_dimensions(model: str, dimensions: int, longest: int) -> None:
    if model != _FIXED and 1 <= dimensions <= longest:
        return
    always = f"null, because its vectors always have {longest} numbers"
    allowed = always if model == _FIXED else f"1 to {longest}"
    raise ConfigError(
        f"embeddingDimensions must be {allowed} for {model}, not {dimensions}",
        path="embeddingDimensions",
        value=dimensions,
        allowed=allowed,
    )


def group_texts(texts: Sequence[str], max_texts: int) -> list[list[str]]:
    """Split *texts* into one group per request, and return the groups in order.

    A group has at most *max_texts* texts and 300,000 bytes. A text longer than 24,573 bytes is cut,
    and an empty text becomes one space.
    """
    groups: list[list[str]] = []
    size = 0
    for text in texts:
        # The service rejects an empty text.
        sent = _cut_to_bytes(replace_surrogates(text[:_LONGEST]), _LONGEST) or " "
        length = len(sent.encode())
        is_full = not groups or len(groups[-1]) >= min(max_texts, _MOST_TEXTS)
        if is_full or size + length > _MOST_REQUEST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(sent)
        size += length
    return groups


def _cut_to_bytes(text: str, max_bytes: int) -> str:
    # The cut may split a character, whose first bytes are then ignored.
    return text.encode()[:max_bytes].decode(errors="ignore")


def _halve_texts(texts: list[str]) -> list[list[str]]:
    """Split *texts* into two lists, or cut a single text to half its length.

    Returns an empty list for a single text of at most 256 bytes.
    """
    if len(texts) > 1:
        middle = len(texts) // 2
        return [texts[:middle], texts[middle:]]
    size = len(texts[0].encode())
    return [[_cut_to_bytes(texts[0], size // 2)]] if size > _SHORTEST else []


def _is_length_error(error: Exception) -> bool:
    status = read_status(error)
    return status == 413 or (status in (400, 422) and _TOO_LONG.search(str(error)) is not None)
