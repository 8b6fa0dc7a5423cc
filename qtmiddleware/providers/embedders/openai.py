"""Embeds with OpenAI and every service that speaks its embeddings."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import finalize

from qtmiddleware.errors import ConfigError, EmbeddingError, explained
from qtmiddleware.providers.embedders.vectors import checked_vectors, readable, vectors_in
from qtmiddleware.providers.http_clients import make_http_client, with_bounded_error_bodies
from qtmiddleware.runtime.steps import converse
from qtmiddleware.types import Deadline

MOST_TEXTS: Final = 2_048
MOST_REQUEST_BYTES: Final = 300_000
LONGEST: Final = 3 * 8_191
"""Bytes that are sent of a text at first."""
SHORTEST: Final = 256
"""A text of so few bytes is not shortened any further: something else must be wrong."""


class Batches:
    """The texts in batches, taken one after the other; a batch can be given back in halves."""

    def __init__(self, texts: Sequence[str], most_texts: int) -> None:
        self._texts = [as_sent(text) for text in texts]
        self._waiting = deque(_grouped(self._texts, min(most_texts, MOST_TEXTS)))

    def take(self) -> list[int]:
        """The positions of the next texts; empty when all are done."""
        return self._waiting.popleft() if self._waiting else []

    def texts(self, batch: Sequence[int]) -> list[str]:
        """What is sent for the texts of *batch*."""
        return [self._texts[at] for at in batch]

    def halve(self, batch: list[int]) -> bool:
        """Put *batch* back in two halves, or its only text in half its length; false where that is short already."""
        if len(batch) > 1:
            middle = len(batch) // 2
            self._waiting.extendleft((batch[middle:], batch[:middle]))
            return True
        size = len(self._texts[batch[0]].encode())
        if size <= SHORTEST:
            return False
        self._texts[batch[0]] = shortened(self._texts[batch[0]], size // 2)
        self._waiting.appendleft(batch)
        return True


def as_sent(text: str) -> str:
    """*text* as the service takes it: a space for an empty one, which it refuses, and the beginning of a long one."""
    return shortened(readable(text[:LONGEST]), LONGEST) or " "


def shortened(text: str, most: int) -> str:
    """As much of the beginning of *text* as fits in *most* bytes of UTF-8."""
    data = text.encode()
    return text if len(data) <= most else data[:most].decode(errors="ignore")


def _grouped(texts: Sequence[str], most_texts: int) -> list[list[int]]:
    """Positions in order, in groups within both limits."""
    groups: list[list[int]] = []
    size = 0
    for at, text in enumerate(texts):
        length = len(text.encode())
        if not groups or len(groups[-1]) >= most_texts or size + length > MOST_REQUEST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(at)
        size += length
    return groups


KEY_VARIABLE: Final = "OPENAI_API_KEY"
ADDRESS_VARIABLE: Final = "OPENAI_BASE_URL"
NO_KEY: Final = "none"
"""Sent to a server of the user's own where no key is set: such servers ask for none, but the client insists on one."""


class Clients:
    """The user's own client, never closed, or ours, made once a process."""

    def __init__(self, given: Any, base_url: str | None) -> None:
        self._given = given
        self._base_url = base_url
        # By process, as sockets do not survive a fork; `setdefault` is atomic, a lock might be held during a fork.
        self._by_process: dict[int, Any] = {}

    @property
    def host(self) -> str:
        """The host that is spoken to, without path, user or password."""
        address = self._address() if self._given is None else getattr(self._given, "base_url", "")
        try:
            return urlsplit(str(address or "")).hostname or "the default address"
        except ValueError:
            return "an address that cannot be read"

    def client(self) -> Any:
        """The client for a call; raises `EmbeddingError` where it is asynchronous or there is no key."""
        if self._given is not None:
            if _is_async(self._given):
                raise EmbeddingError("an async client cannot serve a synchronous call; pass openai.OpenAI()")
            return self._given
        process = os.getpid()
        client = self._by_process.get(process)
        if client is None:
            with explained(EmbeddingError):
                made = self._made()
            client = self._by_process.setdefault(process, made)
            if client is not made:
                made.close()
        return client

    def close(self) -> None:
        """Close our client of this process; the next call makes another."""
        client = self._by_process.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _address(self) -> str | None:
        return self._base_url or os.environ.get(ADDRESS_VARIABLE, "").strip() or None

    def _made(self) -> Any:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key and not self._address():
            raise EmbeddingError(
                f"there is no key for the embedding model: set {KEY_VARIABLE}, or {ADDRESS_VARIABLE} (base_url) for a"
                " server that needs none"
            )
        import openai

        own = make_http_client(is_async=False)
        made = openai.OpenAI(api_key=key or NO_KEY, base_url=self._address(), http_client=own)
        # As the vendor's own is: an embedder that nobody closed leaves no connection.
        finalize(made, own.close).atexit = False
        return made


def is_vendors(client: Any) -> bool:
    """Whether *client* is of the vendor's own classes and its ``create`` was not replaced by a tracing library."""
    vendor = sys.modules.get("openai")
    # By its real type: a double or a proxy may answer `isinstance` as the class it stands for.
    if vendor is None or not issubclass(type(client), vendor.OpenAI):
        return False
    return "create" not in vars(client.embeddings)


def retries_of(client: Any) -> int:
    """How often *client* would try again; 0 for one that is not the vendor's, which does as it likes by itself."""
    return int(client.max_retries) if is_vendors(client) else 0


def calmed(client: Any) -> Any:
    """*client* without the SDK's retries and with an end to the bodies of errors, sharing its connections.

    One we cannot copy stays as it is.
    """
    if not is_vendors(client):
        return client
    return client.with_options(max_retries=0, http_client=with_bounded_error_bodies(client._client))


def _is_async(client: Any) -> bool:
    """Whether *client* is an asynchronous one, told by the names of its classes."""
    return any(ancestor.__name__.startswith("Async") for ancestor in type(client).__mro__)


FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 8.0
"""Seconds between two tries where the service does not say."""

_ADVICE: Final = {
    401: "refused the key; check OPENAI_API_KEY",
    403: "refused the key or the model; check OPENAI_API_KEY and what it may use",
    404: "does not know the model or the address; check embeddingModel and the base URL",
    407: "is behind a proxy that asks for a name and password; check HTTPS_PROXY",
    408: "did not answer in time",
    413: "says a text is too long",
    429: "takes no more requests for now (rate limit)",
}
# Most services give no code with this one, only a sentence.
_TOO_LONG: Final = re.compile(
    r"context.?length|maximum input length|max_tokens_per_request|tokens per request|must have less than"
    r"|too (?:long|large|many tokens)|maximum allowed batch",
    re.IGNORECASE,
)
_TIMEOUTS: Final = frozenset({"APITimeoutError", "TimeoutException", "TimeoutError"})
_CONNECTIONS: Final = frozenset({"APIConnectionError", "TransportError", "OSError"})
_IDENTIFIER: Final = re.compile(r"[a-z][a-z_]{2,39}")


def as_embedding_error(error: Exception, where: str) -> EmbeddingError:
    """The `EmbeddingError` for *error*, raised by a client while asking *where*.

    It names the kind of failure and the service's own error code, where that is a plain identifier; never a key or a
    text, which services like to quote in their messages.
    """
    if isinstance(error, EmbeddingError):
        return error
    if isinstance(error, UnicodeEncodeError):
        # Headers must be ASCII, and the key is the only one that is not ours.
        return EmbeddingError(f"the key for {where} holds letters no key holds; check OPENAI_API_KEY")
    status = _status(error)
    if status is None:
        said = "did not answer in time" if _is(error, _TIMEOUTS) else "cannot be reached"
        if not _is(error, _TIMEOUTS | _CONNECTIONS):
            said = "sent an answer that cannot be read"
        return EmbeddingError(f"{where} {said} ({type(error).__name__}); check the base URL and the network")
    if 300 <= status < 400:
        # Such a status reaches us from clients alone that follow none.
        said = f"redirects to another address (HTTP {status}), which is not followed; check the base URL"
        return EmbeddingError(f"{where} {said}")
    if _code(error) == "insufficient_quota":
        return EmbeddingError(f"{where} says the quota of this key is used up (HTTP {status}); check plan and billing")
    said = _ADVICE.get(status, "is not available" if status >= 500 else "rejected the request")
    code = _code(error)
    return EmbeddingError(f"{where} {said} (HTTP {status}{f', {code}' if _IDENTIFIER.fullmatch(code) else ''})")


def is_too_long(error: Exception) -> bool:
    """Whether the service says that the request, or a text of it, is too long."""
    status = _status(error)
    return status == 413 or (status in {400, 422} and _TOO_LONG.search(str(error)) is not None)


def pause_after(error: Exception, tries: int) -> float | None:
    """The seconds after which *error*, the *tries*-th in a row, is worth another try; ``None`` if it never is."""
    status = _status(error)
    if status is None:
        passing = _is(error, _CONNECTIONS | _TIMEOUTS)
    else:
        passing = (status in {408, 409, 429} or status >= 500) and _code(error) != "insufficient_quota"
    if not passing:
        return None
    wanted = _retry_after(error)
    # Not all at the same moment: they were sent away at the same moment.
    return (
        wanted if wanted is not None else min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
    )


def _retry_after(error: Exception) -> float | None:
    """The seconds the service asks to wait, where it says so as a number."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(AttributeError, TypeError, ValueError):
            seconds = float(headers.get(name)) * unit
            if isfinite(seconds) and seconds >= 0:
                return seconds
    return None


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _is(error: Exception, names: frozenset[str]) -> bool:
    """Whether *error* is of one of these classes, told by name, so that none of them is imported."""
    return any(ancestor.__name__ in names for ancestor in type(error).__mro__)


def _code(error: Exception) -> str:
    body: Any = getattr(error, "body", None)
    code = body.get("code") if isinstance(body, Mapping) else None
    return code if isinstance(code, str) else ""


__all__ = ["OpenAIEmbedder"]

DIMENSIONS: Final = {
    "text-embedding-3-small": 1_536,
    "text-embedding-3-large": 3_072,
    "text-embedding-ada-002": 1_536,
}
MOST_ANSWER_BYTES: Final = 1 << 18
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
        body, most = bytearray(), MOST_ANSWER_BYTES * (1 + len(texts))
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
