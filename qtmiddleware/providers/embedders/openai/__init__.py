"""Embeds with OpenAI and every service that speaks its embeddings."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ConfigError, EmbeddingError
from qtmiddleware.providers.embedders.openai.answer import vectors_in
from qtmiddleware.providers.embedders.openai.batches import Batches
from qtmiddleware.providers.embedders.openai.clients import Clients, calmed, is_vendors, retries_of
from qtmiddleware.providers.embedders.openai.failures import as_embedding_error, is_too_long, pause_after
from qtmiddleware.providers.embedders.vectors import checked_vectors
from qtmiddleware.runtime.steps import converse
from qtmiddleware.types import Deadline

__all__ = ["OpenAIEmbedder"]

DIMENSIONS: Final = {
    "text-embedding-3-small": 1_536,
    "text-embedding-3-large": 3_072,
    "text-embedding-ada-002": 1_536,
}
MOST_BYTES: Final = 1 << 18
"""Most bytes that are read of an answer for each text in it: a vector of 4,096 numbers comes in some 90,000."""
FIXED: Final = frozenset({"text-embedding-ada-002"})
"""Models that cannot shorten their vectors."""

_Step = tuple[list[str], Deadline] | float
"""Texts to be sent, and until when; or seconds to wait."""
_Talk = Generator[_Step, Any, list[list[float]]]
"""Is sent what came of each step, or has the error thrown in; returns the vectors."""


class OpenAIEmbedder:
    """Embeds texts through the ``openai`` client, in batches within the service's limits.

    *client* is an ``openai.OpenAI``, used as it is and never closed, or ``None``: then one is made on first use, the
    key from ``OPENAI_API_KEY``, the address from *base_url*, else from ``OPENAI_BASE_URL``, else the SDK's default. A
    server of one's own needs no key.

    *dimensions* asks for shorter vectors, of the models that can shorten them; it is sent only when given. The length
    of other models' vectors is learned from the first that come. *batch_size* is the most texts of one request, at most
    2,048. *timeout* is the seconds one request may take in all, its retries and their pauses included; many texts are
    many requests, one after the other. There are as many retries as the client is set to (the SDK's default is two),
    with the pause the service asks for; they are made here, because the SDK's own know of no deadline.

    An empty text is sent as one space, since the service refuses it. Of a text of more than 24,573 bytes (about 8,191
    tokens) the beginning is sent, and half of that while the service says it is too long.

    Safe to share among threads. Raises `ConfigError` for impossible *dimensions* and `EmbeddingError` on use.
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
        self._clients = Clients(client, base_url)
        self._asked = dimensions
        self._dimension = dimensions or DIMENSIONS.get(model)
        self._batch_size = max(1, batch_size)
        self._timeout = timeout
        _check_dimensions(model, dimensions)

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._model!r}, dimensions={self._asked}, host={self._clients.host!r})"

    @property
    def name(self) -> str:
        """The model's name, whatever the dimensions are: `dimension` stands beside it wherever it is kept."""
        return self._model

    @property
    def dimension(self) -> int:
        """The length of every vector; where it is not known, one word is embedded to learn it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in the texts' order; raises `EmbeddingError`."""
        if not texts:
            return []
        client = self._clients.client()
        return converse(self._talk(texts, retries_of(client)), partial(self._send, calmed(client)))

    def close(self) -> None:
        """Close the client that was made here; the next use makes another."""
        self._clients.close()

    def _talk(self, texts: Sequence[str], retries: int) -> _Talk:
        batches = Batches(texts, self._batch_size)
        vectors: list[list[float]] = [[]] * len(texts)
        while batch := batches.take():
            deadline = Deadline.after(self._timeout)
            tries = 0
            while True:
                try:
                    answer = yield batches.texts(batch), deadline
                except Exception as error:
                    tries += 1
                    if is_too_long(error) and batches.halve(batch):
                        break
                    pause = pause_after(error, tries)
                    if pause is None or tries > retries or pause >= deadline.remaining():
                        raise as_embedding_error(error, f"{self._model} at {self._clients.host}") from None
                    yield pause
                    continue
                for at, vector in zip(batch, self._vectors(answer, len(batch)), strict=True):
                    vectors[at] = vector
                break
        return vectors

    def _vectors(self, answer: Any, count: int) -> list[list[float]]:
        found = vectors_in(answer, count, self._model)
        vectors = checked_vectors(found, count, dimension=self._dimension, name=self._model)
        self._dimension = len(vectors[0])
        return vectors

    def _send(self, client: Any, step: _Step) -> Any:
        if isinstance(step, float):
            time.sleep(step)
            return None
        texts, deadline = step
        request = self._request(texts, deadline.remaining())
        if not is_vendors(client):
            return client.embeddings.create(**request)
        body, most = bytearray(), MOST_BYTES * (1 + len(texts))
        with client.embeddings.with_streaming_response.create(**request) as response:
            # Piece by piece: the timeout of a request is that of each read, and a body may take many.
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > most:
                    raise EmbeddingError(f"{self._model} sent more than {most:,} bytes, which was not read on")
                if deadline.passed:
                    raise TimeoutError
        return bytes(body)

    def _request(self, texts: list[str], timeout: float) -> dict[str, Any]:
        shorter = {} if self._asked is None else {"dimensions": self._asked}
        return {"model": self._model, "input": texts, "timeout": timeout, **shorter}


def _check_dimensions(model: str, dimensions: int | None) -> None:
    """Raise `ConfigError` for a length that *model* is known not to have."""
    longest = DIMENSIONS.get(model)
    if dimensions is None or longest is None or (1 <= dimensions <= longest and model not in FIXED):
        return
    allowed = f"null: it gives {longest} and can give no other" if model in FIXED else f"1 to {longest}"
    raise ConfigError(
        f"{model} gives no vectors of {dimensions} numbers; allowed is {allowed}",
        path="embeddingDimensions",
        value=dimensions,
        allowed=allowed,
    )
