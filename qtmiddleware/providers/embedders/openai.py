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
import random
import re
import time
from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import ConfigError, EmbeddingError, explain_client_errors
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.embedders.vectors import (
    Vectors,
    check_and_convert_vectors,
    read_vectors,
)
from qtmiddleware.providers.openai_client import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    TIMEOUTS,
    convert_client_error,
    copy_without_retries,
    find_provider,
    has_class_name_in,
    is_async_client,
    is_vendor_client,
    make_client,
    read_api_key,
    read_body_field,
    read_host,
    read_host_and_port,
    read_retry_after,
    read_status,
)
from qtmiddleware.runtime.forking import leave_to_parent, make_lock, register_fork_reset
from qtmiddleware.types import NEVER, Deadline

DIMENSIONS: Final = {
    "text-embedding-3-small": 1_536,
    "text-embedding-3-large": 3_072,
    "text-embedding-ada-002": 1_536,
}
FIXED: Final = frozenset({"text-embedding-ada-002"})
"""The models that cannot shorten their vectors."""
MOST_TEXTS: Final = 2_048
MOST_REQUEST_BYTES: Final = 300_000
LONGEST: Final = 3 * 8_191
"""The maximum length of a text in bytes. Longer texts are cut."""
SHORTEST: Final = 256
"""The length in bytes up to which a text is not cut further.

If the service rejects such a short text as too long, the length is not the real cause.
"""
MOST_ANSWER_BYTES: Final = 1 << 18
"""The maximum size of an answer in bytes per text.

A vector of 4,096 numbers takes about 90,000 bytes.
"""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 8.0
"""The longest pause in seconds before a retry, if the service does not ask for one."""

_RESOURCE: Final = "embeddings"
# Most services send no code for this error, only a sentence.
_TOO_LONG: Final = re.compile(
    r"context.?length|maximum input length|max_tokens_per_request|tokens per request|must have less"
    r" than"
    r"|too (?:long|large|many tokens)|maximum allowed batch",
    re.IGNORECASE,
)
_CONNECTIONS: Final = frozenset({"APIConnectionError", "TransportError", "OSError"})


class OpenAIEmbedder:
    """Embeds texts through the ``openai`` client, in batches within the service's limits.

    The service rejects empty texts, so an empty text is sent as one space. A text is cut to 24,573
    bytes (about 8,191 tokens). If the service still rejects the text as too long, the embedder cuts
    the text in half, repeatedly if necessary.

    A failed request is retried up to ``max_retries`` times, a setting of the client (default: 2).
    If the service asks for a pause, the embedder waits that long. The SDK's own retries are not
    used, because they ignore the timeout. Thread-safe.

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
        timeout: The maximum time in seconds for one request, including its retries and pauses.

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
        self._model = model
        self._user_client = client
        self._base_url = base_url
        self._lock = make_lock()
        self._made_client: Any = None
        self._dimensions = dimensions
        self._dimension = dimensions or DIMENSIONS.get(model)
        self._batch_size = max(1, batch_size)
        self._timeout = timeout
        _check_dimensions(model, dimensions)
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
        return read_host_and_port(
            self._find_server_address() or (DEFAULT_ADDRESS if self._user_client is None else "")
        )

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
        if not texts:
            return []
        client, retries = self._choose_client(), 0
        # A wrapper or test double keeps its own retries.
        if is_vendor_client(client, _RESOURCE):
            client, retries = copy_without_retries(client), int(client.max_retries)
        vectors = Vectors()
        for batch in group_texts(texts, self._batch_size):
            vectors.append_vectors(self._embed_batch(client, batch, retries))
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
        return read_host(self._find_server_address())

    def _find_server_address(self) -> str:
        return (
            str(getattr(self._user_client, "base_url", ""))
            if self._user_client is not None
            else self._find_configured_address() or ""
        )

    def _find_configured_address(self) -> str | None:
        return self._base_url or os.environ.get(SDK_ADDRESS_VARIABLE, "").strip() or None

    def _choose_client(self) -> Any:
        """Return the user's client, or else the client that was made for this process.

        Raises `EmbeddingError` if the user's client is async or there is no key.
        """
        if self._user_client is None:
            with self._lock:
                if self._made_client is None:
                    self._made_client = self._make_client()
                return self._made_client
        if is_async_client(self._user_client):
            raise EmbeddingError(
                "the client must be synchronous for a synchronous call; pass openai.OpenAI()"
            )
        return self._user_client

    def _make_client(self) -> Any:
        address = self._find_configured_address()
        if not address and not read_api_key():
            raise EmbeddingError(
                f"the key for the embedding model is missing: set {KEY_VARIABLE}, or"
                f" {SDK_ADDRESS_VARIABLE} (base_url) for a server that needs none"
            )
        with explain_client_errors(EmbeddingError):
            return make_client(address=address)

    def _embed_batch(self, client: Any, texts: list[str], max_retries: int) -> Vectors:
        """Return the vectors of *texts*. Split a request that the service rejects as too long.

        Raises `EmbeddingError` if a request fails for another reason.
        """
        try:
            answer = self._send_with_retries(client, texts, max_retries)
        except EmbeddingError:
            raise
        except Exception as error:
            smaller_batches = _halve_texts(texts) if _is_length_error(error) else []
            if not smaller_batches:
                service = f"{self._model} at {self._host}"
                service_error = convert_client_error(
                    error, service, address="the base URL", timeout="the embedder's timeout"
                )
                raise EmbeddingError(str(service_error)) from None
        else:
            received = read_vectors(answer, len(texts), self._model)
            vectors = check_and_convert_vectors(
                received, len(texts), dimension=self._dimension, model_name=self._model
            )
            self._dimension = len(vectors[0])
            return vectors
        halves = Vectors()
        for batch in smaller_batches:
            halves.append_vectors(self._embed_batch(client, batch, max_retries))
        return halves

    def _send_with_retries(self, client: Any, texts: list[str], max_retries: int) -> Any:
        """Send a request, retry it up to *max_retries* times, and return the answer.

        If all tries fail, raises the client's last exception.
        """
        deadline = Deadline.after(self._timeout)
        tries = 0
        while True:
            tries += 1
            try:
                return self._send_request(client, texts, deadline)
            except Exception as error:
                pause = _choose_pause_seconds(error, tries) if tries <= max_retries else NEVER
                # A retry after the deadline is useless, so the error is raised without waiting.
                if pause >= deadline.remaining():
                    raise
            time.sleep(pause)

    def _send_request(self, client: Any, texts: list[str], deadline: Deadline) -> Any:
        shorter = {} if self._dimensions is None else {"dimensions": self._dimensions}
        request = {"model": self._model, "input": texts, "timeout": deadline.remaining(), **shorter}
        if not is_vendor_client(client, _RESOURCE):
            return client.embeddings.create(**request)
        body, most = bytearray(), MOST_ANSWER_BYTES * (1 + len(texts))
        with client.embeddings.with_streaming_response.create(**request) as response:
            # The request's timeout applies to each read, and a slow body takes many reads. So the
            # deadline is checked after every chunk.
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > most:
                    raise EmbeddingError(
                        f"{self._model} sent more than {most:,} bytes, the limit; the rest was not"
                        " read"
                    )
                if deadline.passed:
                    raise TimeoutError
        return bytes(body)


def _check_dimensions(model: str, dimensions: int | None) -> None:
    """Raise `ConfigError` if *model* cannot return vectors of length *dimensions*.

    Unknown models are not checked.
    """
    longest = DIMENSIONS.get(model)
    if dimensions is None or longest is None or (1 <= dimensions <= longest and model not in FIXED):
        return
    allowed = (
        f"null, because its vectors always have {longest} numbers"
        if model in FIXED
        else f"1 to {longest}"
    )
    raise ConfigError(
        f"embeddingDimensions must be {allowed} for {model}, not {dimensions}",
        path="embeddingDimensions",
        value=dimensions,
        allowed=allowed,
    )


def group_texts(texts: Sequence[str], max_texts: int) -> list[list[str]]:
    """Split *texts* into one group per request, and return the groups in order.

    A group has at most *max_texts* texts and 300,000 bytes. A text longer than `LONGEST` bytes is
    cut, and an empty text becomes one space.
    """
    groups: list[list[str]] = []
    size = 0
    for text in texts:
        # The service rejects an empty text.
        sent = cut_to_bytes(replace_surrogates(text[:LONGEST]), LONGEST) or " "
        length = len(sent.encode())
        if (
            not groups
            or len(groups[-1]) >= min(max_texts, MOST_TEXTS)
            or size + length > MOST_REQUEST_BYTES
        ):
            groups.append([])
            size = 0
        groups[-1].append(sent)
        size += length
    return groups


def cut_to_bytes(text: str, max_bytes: int) -> str:
    """Return the longest beginning of *text* that has at most *max_bytes* bytes in UTF-8."""
    # The cut may split a character, whose first bytes are then ignored.
    return text.encode()[:max_bytes].decode(errors="ignore")


def _halve_texts(texts: list[str]) -> list[list[str]]:
    """Split *texts* into two lists, or cut a single text to half its length.

    Returns an empty list for a single text of at most `SHORTEST` bytes.
    """
    if len(texts) > 1:
        middle = len(texts) // 2
        return [texts[:middle], texts[middle:]]
    size = len(texts[0].encode())
    return [[cut_to_bytes(texts[0], size // 2)]] if size > SHORTEST else []


def _is_length_error(error: Exception) -> bool:
    """Return whether *error* says that the request or one of its texts is too long."""
    status = read_status(error)
    return status == 413 or (status in {400, 422} and _TOO_LONG.search(str(error)) is not None)


def _is_quota_error(error: Exception) -> bool:
    return read_body_field(error, "code") == "insufficient_quota"


def _choose_pause_seconds(error: Exception, failed_try_count: int) -> float:
    """Return the seconds to wait before a retry; infinite if a retry cannot help.

    If the service asks for a pause in *error*, that pause is returned. Otherwise, the pause doubles
    after each failed try, up to `LONGEST_PAUSE`.
    """
    status = read_status(error)
    if status is None:
        is_temporary = has_class_name_in(error, _CONNECTIONS | TIMEOUTS)
    else:
        is_temporary = (status in {408, 409, 429} or status >= 500) and not _is_quota_error(error)
    if not is_temporary:
        return NEVER
    service_pause = read_retry_after(error)
    # The pause is random, so that callers that failed together do not retry at the same moment.
    pause = min(FIRST_PAUSE * 2 ** (failed_try_count - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
    return pause if service_pause is None else service_pause
