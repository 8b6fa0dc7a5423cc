"""The bodies of errors have an end, for whichever service they come from and whoever made the client."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from qtmiddleware.errors import EmbeddingError, ModelError
from qtmiddleware.protocols import Prompt
from qtmiddleware.providers.embedders.openai import OpenAIEmbedder
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.openai_client import MOST_ERROR_BYTES
from qtmiddleware.types import Deadline
from tests.support.wire import Wire

KEY = "sk-verysecret0123456789"
PROMPT = Prompt("rewrite", "1", "Rewrite.", "a question", (), "a question")
HEAD = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\nretry-after: 7\r\n"
MOST_BUFFERED = 16 << 20
"""What sockets and one decompressed piece may hold beside what is read."""


@pytest.fixture(autouse=True)
def environment(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


class Service:
    """A server that answers every request with an error, and how much of it was taken in."""

    def __init__(self, status: int, talk: Callable[[Service, Wire, socket.socket], None]) -> None:
        self.sent = 0
        self._status = status
        self._wire = Wire(lambda wire, connection: talk(self, wire, connection))
        self.url = self._wire.url()
        self.stop = self._wire.stop

    def send_head(self, connection: socket.socket, *fields: bytes) -> None:
        connection.sendall(
            HEAD % self._status + b"".join(field + b"\r\n" for field in fields) + b"\r\n"
        )

    def send(self, connection: socket.socket, piece: bytes) -> None:
        connection.sendall(piece)
        self.sent += len(piece)


def endless(service: Service, wire: Wire, connection: socket.socket) -> None:
    service.send_head(connection, b"transfer-encoding: chunked")
    while not wire.ended.is_set():
        service.send(connection, b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


def a_gigabyte(service: Service, wire: Wire, connection: socket.socket) -> None:
    service.send_head(connection, b"content-length: 1073741824")
    for _ in range(1 << 14):
        service.send(connection, b"[" * (1 << 16))


def trickled(service: Service, wire: Wire, connection: socket.socket) -> None:
    service.send_head(connection, b"content-length: 1073741824")
    while not wire.ended.wait(0.02):
        service.send(connection, b" ")


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def start(status: int, talk: Callable[[Service, Wire, socket.socket], None]) -> Service:
        services.append(Service(status, talk))
        return services[-1]

    yield start
    for service in services:
        service.stop()


def clients(owner: str, url: str) -> Any:
    if owner == "own":
        return None
    options: dict[str, Any] = {"api_key": KEY, "base_url": url, "max_retries": 0}
    if owner == "given":
        return openai.OpenAI(**options), openai.AsyncOpenAI(**options)
    return (
        openai.OpenAI(http_client=openai.DefaultHttpxClient(), **options),
        openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(), **options),
    )


def ask_blocking(owner: str, url: str, seconds: float) -> None:
    OpenAIModel("m", base_url=url, client=clients(owner, url)).complete(
        PROMPT, Deadline.after(seconds)
    )


def ask_awaiting(owner: str, url: str, seconds: float) -> None:
    async def ask() -> None:
        await OpenAIModel("m", base_url=url, client=clients(owner, url)).acomplete(
            PROMPT, Deadline.after(seconds)
        )

    asyncio.run(ask())


def stream_blocking(owner: str, url: str, seconds: float) -> None:
    list(
        OpenAIModel("m", base_url=url, client=clients(owner, url)).stream(
            PROMPT, Deadline.after(seconds)
        )
    )


def stream_awaiting(owner: str, url: str, seconds: float) -> None:
    async def stream() -> None:
        model = OpenAIModel("m", base_url=url, client=clients(owner, url))
        _ = [piece async for piece in model.astream(PROMPT, Deadline.after(seconds))]

    asyncio.run(stream())


def embed(owner: str, url: str, seconds: float) -> None:
    client = None if owner == "own" else clients(owner, url)[0]
    OpenAIEmbedder("m", base_url=url, client=client, timeout=seconds).embed(["a text"])


WAYS = [ask_blocking, ask_awaiting, stream_blocking, stream_awaiting, embed]
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda it: it.__name__)
each_owner = pytest.mark.parametrize("owner", ["own", "given", "given-http"])
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@each_way
@each_owner
@pytest.mark.parametrize("talk", [endless, a_gigabyte], ids=lambda it: it.__name__)
def test_an_error_with_a_body_too_large_is_told_by_its_status_and_not_read_on(
    way: Callable[..., None], owner: str, talk: Any, serve: Callable[..., Service]
) -> None:
    service = serve(429 if way is not embed else 400, talk)
    with pytest.raises((ModelError, EmbeddingError), match=r"HTTP 4") as caught:
        way(owner, service.url, 30.0)
    assert service.sent < MOST_BUFFERED
    if isinstance(caught.value, ModelError):
        assert (caught.value.reason, caught.value.retry_after) == ("rate_limited", 7.0)


@each_way
@each_owner
def test_an_error_whose_body_is_trickled_ends_with_the_time(
    way: Callable[..., None], owner: str, serve: Callable[..., Service]
) -> None:
    service = serve(500, trickled)
    with pytest.raises((ModelError, EmbeddingError)) as caught:
        way(owner, service.url, 0.3)
    assert getattr(caught.value, "reason", "timeout") in ("timeout", "unavailable")
    assert "in time" in str(caught.value) or "HTTP 500" in str(caught.value)


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda it: it.__name__)
def test_what_an_error_of_usual_size_says_is_heard_as_ever(
    way: Callable[..., None], serve: Callable[..., Service]
) -> None:
    body = json.dumps(
        {
            "error": {
                "message": "no",
                "code": "content_filter",
                "more": "x" * (MOST_ERROR_BYTES // 2),
            }
        }
    ).encode()

    def said(service: Service, wire: Wire, connection: socket.socket) -> None:
        packed = gzip.compress(body)
        service.send_head(
            connection, b"content-encoding: gzip", b"content-length: %d" % len(packed)
        )
        service.send(connection, packed)

    with pytest.raises(ModelError) as caught:
        way("own", serve(400, said).url, 30.0)
    assert caught.value.reason == "refused"


def test_a_given_client_is_left_as_it_was(serve: Callable[..., Service]) -> None:
    service = serve(429, endless)
    given, _ = clients("given", service.url)
    http, hooks = (
        given._client,
        {name: list(hooks) for name, hooks in given._client.event_hooks.items()},
    )
    model = OpenAIModel("m", client=given)
    with pytest.raises(ModelError):
        model.complete(PROMPT, Deadline.after(30.0))
    model.close()
    del model
    assert given._client is http
    assert http.event_hooks == hooks
    assert not given.is_closed()
    given.close()


def test_a_given_client_that_was_closed_is_not_opened_again(serve: Callable[..., Service]) -> None:
    service = serve(429, endless)
    given, _ = clients("given", service.url)
    model = OpenAIModel("m", client=given)
    with pytest.raises(ModelError, match="HTTP 429"):
        model.complete(PROMPT, Deadline.after(30.0))
    given.close()
    sent = service.sent
    with pytest.raises(ModelError) as caught:
        model.complete(PROMPT, Deadline.after(30.0))
    assert caught.value.reason == "unavailable"
    assert service.sent == sent
