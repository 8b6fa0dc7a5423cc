"""Embeds with OpenAI and every service that speaks its embeddings.

The service takes at most 2,048 texts and 300,000 tokens a request and 8,191 tokens a text. Tokens
are not counted here, for that takes a table of the vendor's that is fetched from the net. A token
is at least one byte of UTF-8, so a request of 300,000 bytes is never too large; and it is three
bytes or more in the languages of Europe, so a text of 24,573 bytes nearly always fits. Where the
service still says that something is too long, the request is halved, in the end the text
itself: what is kept of a text depends on that text alone.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import ConfigError, EmbeddingError, explained
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.embedders.vectors import Vectors, check_vectors, read_vectors
from qtmiddleware.providers.openai_client import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    TIMEOUTS,
    ClientPerProcess,
    copy_without_retries,
    find_provider,
    is_any_of,
    is_async_client,
    is_vendor_client,
    make_client,
    read_body_field,
    read_client_error,
    read_host,
    read_key,
    read_server,
    retry_after,
    status_of,
)
from qtmiddleware.types import NEVER, Deadline

DIMENSIONS: Final = {
    "text-embedding-3-small": 1_536,
    "text-embedding-3-large": 3_072,
    "text-embedding-ada-002": 1_536,
}
FIXED: Final = frozenset({"text-embedding-ada-002"})
"""Models that cannot cut_to_bytes their vectors."""
MOST_TEXTS: Final = 2_048
MOST_REQUEST_BYTES: Final = 300_000
LONGEST: Final = 3 * 8_191
"""Bytes that are sent of a text at first."""
SHORTEST: Final = 256
"""A text of so few bytes is not shortened any further: something else must be wrong."""
MOST_ANSWER_BYTES: Final = 1 << 18
"""Most bytes that are read of an answer for each text in it: a vector of 4,096 numbers comes in some 90,000."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 8.0
"""Seconds between two tries where the service does not say."""

_RESOURCE: Final = "embeddings"
# Most services give no code with this one, only a sentence.
_TOO_LONG: Final = re.compile(
    r"context.?length|maximum input length|max_tokens_per_request|tokens per request|must have less"
    r" than"
    r"|too (?:long|large|many tokens)|maximum allowed batch",
    re.IGNORECASE,
)
_CONNECTIONS: Final = frozenset({"APIConnectionError", "TransportError", "OSError"})


class OpenAIEmbedder:
    """Embeds texts through the ``openai`` client, in batches within the service's limits.

    *client* is an ``openai.OpenAI``, used as it is and never closed, or ``None``: then one is made
    on first use, the key from ``OPENAI_API_KEY``, the address from *base_url*, else from
    ``OPENAI_BASE_URL``, else the SDK's default. A server of one's own needs no key.

    *dimensions* asks for shorter vectors, of the models that can shorten them; it is sent only when
    given. The length of other models' vectors is learned from the first that come. *batch_size* is
    the most texts of one request, at most 2,048. *timeout* is the seconds one request may take in
    all, its retries and their pauses included; many texts are many requests, one after the other.
    There are as many retries as the client is set to (the SDK's default is two), with the pause the
    service asks for; they are made here, because the SDK's own know of no deadline.

    An empty text is sent as one space, since the service refuses it. Of a text of more than 24,573
    bytes (about 8,191 tokens) the beginning is sent, and half of that while the service says it is
    too long.

    Safe to share among threads. Raises `ConfigError` for impossible *dimensions* and
    `EmbeddingError` on use.
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
        self._given = client
        self._base_url = base_url
        self._own = ClientPerProcess()
        self._asked = dimensions
        self._dimension = dimensions or DIMENSIONS.get(model)
        self._batch_size = max(1, batch_size)
        self._timeout = timeout
        _check_dimensions(model, dimensions)

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._model!r}, dimensions={self._asked}, host={self._host!r})"

    @property
    def name(self) -> str:
        """The model's name, whatever the dimensions are: `dimension` stands beside it wherever it is kept."""
        return self._model

    @property
    def provider(self) -> str:
        """Who serves the model, as OpenTelemetry's conventions call them; ``openai`` where the host is not known."""
        return find_provider(self._host)

    @property
    def server(self) -> tuple[str, int] | None:
        """The host and port that are spoken to; ``None`` where a given client does not tell them."""
        return read_server(self._find_address() or (DEFAULT_ADDRESS if self._given is None else ""))

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
        client, retries = self._choose_client(), 0
        # Others than the vendor's retry as they like by themselves.
        if is_vendor_client(client, _RESOURCE):
            client, retries = copy_without_retries(client), int(client.max_retries)
        vectors = Vectors()
        for batch in group_texts(texts, self._batch_size):
            vectors.add(self._embed_batch(client, batch, retries))
        return vectors

    def close(self) -> None:
        """Close the client that was made here; the next use makes another."""
        self._own.close()

    @property
    def _host(self) -> str:
        """The host that is spoken to, without path, user or password."""
        return read_host(self._find_address())

    def _find_address(self) -> str:
        return (
            str(getattr(self._given, "base_url", ""))
            if self._given is not None
            else self._read_address() or ""
        )

    def _read_address(self) -> str | None:
        return self._base_url or os.environ.get(SDK_ADDRESS_VARIABLE, "").strip() or None

    def _choose_client(self) -> Any:
        """The client for a call; raises `EmbeddingError` where it is asynchronous or there is no key."""
        if self._given is None:
            return self._own.get(self._make_client)
        if is_async_client(self._given):
            raise EmbeddingError(
                "the client must be synchronous for a synchronous call; pass openai.OpenAI()"
            )
        return self._given

    def _make_client(self) -> Any:
        address = self._read_address()
        if not address and not read_key():
            raise EmbeddingError(
                f"the key for the embedding model is missing: set {KEY_VARIABLE}, or"
                f" {SDK_ADDRESS_VARIABLE} (base_url) for a server that needs none"
            )
        with explained(EmbeddingError):
            return make_client(address=address)

    def _embed_batch(self, client: Any, texts: list[str], retries: int) -> Vectors:
        """The vectors of *texts*, in one request or in as many as it takes where that is too long."""
        try:
            answer = self._ask(client, texts, retries)
        except EmbeddingError:
            raise
        except Exception as error:
            parts = _halve(texts) if _is_too_long(error) else []
            if not parts:
                where = f"{self._model} at {self._host}"
                known = read_client_error(
                    error, where, address="the base URL", timeout="the embedder's timeout"
                )
                raise EmbeddingError(str(known)) from None
        else:
            found = read_vectors(answer, len(texts), self._model)
            vectors = check_vectors(found, len(texts), dimension=self._dimension, name=self._model)
            self._dimension = len(vectors[0])
            return vectors
        halves = Vectors()
        for part in parts:
            halves.add(self._embed_batch(client, part, retries))
        return halves

    def _ask(self, client: Any, texts: list[str], retries: int) -> Any:
        """The answer to one request, with so many *retries* where they may help; raises what the client raises."""
        deadline = Deadline.after(self._timeout)
        tries = 0
        while True:
            tries += 1
            try:
                return self._send(client, texts, deadline)
            except Exception as error:
                pause = _pause_after(error, tries) if tries <= retries else NEVER
                if pause >= deadline.remaining():
                    raise
            time.sleep(pause)

    def _send(self, client: Any, texts: list[str], deadline: Deadline) -> Any:
        shorter = {} if self._asked is None else {"dimensions": self._asked}
        request = {"model": self._model, "input": texts, "timeout": deadline.remaining(), **shorter}
        if not is_vendor_client(client, _RESOURCE):
            return client.embeddings.create(**request)
        body, most = bytearray(), MOST_ANSWER_BYTES * (1 + len(texts))
        with client.embeddings.with_streaming_response.create(**request) as response:
            # Piece by piece: the timeout of a request is that of each read, and a body may take
            # many.
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
    """Raise `ConfigError` for a length that *model* is known not to have."""
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


def group_texts(texts: Sequence[str], most_texts: int) -> list[list[str]]:
    """The texts as the service takes them, in order, in groups within both limits of a request."""
    groups: list[list[str]] = []
    size = 0
    for text in texts:
        # An empty one is refused.
        sent = cut_to_bytes(replace_surrogates(text[:LONGEST]), LONGEST) or " "
        length = len(sent.encode())
        if (
            not groups
            or len(groups[-1]) >= min(most_texts, MOST_TEXTS)
            or size + length > MOST_REQUEST_BYTES
        ):
            groups.append([])
            size = 0
        groups[-1].append(sent)
        size += length
    return groups


def cut_to_bytes(text: str, most: int) -> str:
    """As much of the beginning of *text* as fits in *most* bytes of UTF-8."""
    return text.encode()[:most].decode(errors="ignore")


def _halve(texts: list[str]) -> list[list[str]]:
    """*texts* in two halves, or the only one in half its length; nothing where that is short already."""
    if len(texts) > 1:
        middle = len(texts) // 2
        return [texts[:middle], texts[middle:]]
    size = len(texts[0].encode())
    return [[cut_to_bytes(texts[0], size // 2)]] if size > SHORTEST else []


def _is_too_long(error: Exception) -> bool:
    """Whether the service says that the request, or a text of it, is too long."""
    status = status_of(error)
    return status == 413 or (status in {400, 422} and _TOO_LONG.search(str(error)) is not None)


def _is_out_of_quota(error: Exception) -> bool:
    return read_body_field(error, "code") == "insufficient_quota"


def _pause_after(error: Exception, tries: int) -> float:
    """The seconds after which *error*, the *tries*-th in a row, is worth another try; infinite if it never is."""
    status = status_of(error)
    if status is None:
        passing = is_any_of(error, _CONNECTIONS | TIMEOUTS)
    else:
        passing = (status in {408, 409, 429} or status >= 500) and not _is_out_of_quota(error)
    if not passing:
        return NEVER
    wanted = retry_after(error)
    # Not all at the same moment: they were sent away at the same moment.
    pause = min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
    return pause if wanted is None else wanted
