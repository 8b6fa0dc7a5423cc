from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Protocol

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest

from qtmiddleware.deadline import Deadline
from qtmiddleware.ports import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.types import Message

SECRET = "sk-verysecret0123456789"
QUERY = "Does Jaco have any health concerns?"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, one_authority: str | None) -> None:
    """A key, and nothing else of the machine's own settings."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    if one_authority:
        monkeypatch.setenv("SSL_CERT_FILE", one_authority)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's retries come without a pause."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0, raising=False)


class MakePrompt(Protocol):
    def __call__(
        self, query: str = ..., *history: str, fields: tuple[ReplyField, ...] = ..., mode: str = ...
    ) -> Prompt: ...


FIELDS = (
    ReplyField("standalone", "line", "the standalone question"),
    ReplyField("rewrite", "line", "the rewritten question"),
    ReplyField("sub_queries", "list", "smaller questions", 1, 4),
)


@pytest.fixture
def make_prompt() -> MakePrompt:
    def make(
        query: str = QUERY, *history: str, fields: tuple[ReplyField, ...] = FIELDS, mode: str = "combined"
    ) -> Prompt:
        turns = tuple(Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(history))
        return Prompt(mode, "1", "Answer with one JSON object.", f"<query>{query}</query>", fields, query, turns)

    return make


@pytest.fixture
def prompt(make_prompt: MakePrompt) -> Prompt:
    return make_prompt()


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Reply]:
    """Asks a model in one of the two ways, in an event loop of its own."""

    def in_a_thread(model: LanguageModel, prompt: Prompt, seconds: float = 30.0) -> Reply:
        return model.complete(prompt, Deadline.after(seconds))

    def in_a_loop(model: LanguageModel, prompt: Prompt, seconds: float = 30.0) -> Reply:
        return asyncio.run(model.acomplete(prompt, Deadline.after(seconds)))

    return in_a_thread if request.param == "sync" else in_a_loop


class Wire:
    """A server of plain sockets, for what no well-behaved HTTP server would do.

    *talk* is called with every connection once its first request was read. `requests` counts them.
    """

    def __init__(self, talk: Callable[[Wire, socket.socket], None]) -> None:
        self.ended = Event()
        self.connections = 0
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[Thread] = []
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}/v1"

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self.ended.is_set():
                connection.close()
                return
            self.connections += 1
            self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self.read_request(connection):
                self._talk(self, connection)

    def read_request(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(65536)):
                return b""
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += connection.recv(65536)
        return body

    def stop(self) -> None:
        self.ended.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def wire() -> Iterator[Callable[[Callable[[Wire, socket.socket], None]], Wire]]:
    servers: list[Wire] = []

    def start(talk: Callable[[Wire, socket.socket], None]) -> Wire:
        servers.append(Wire(talk))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
