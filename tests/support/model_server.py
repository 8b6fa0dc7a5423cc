"""The one service of models of the tests: completions and embeddings over real HTTP, as the API speaks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from threading import Event, Lock
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response
from werkzeug.datastructures import Headers

from tests.support.completions import USAGE, chunks, completion, embeddings, error, stream
from tests.support.waiting import PATIENCE

Said = str | Mapping[str, Any] | Iterable[str] | Response
Reply = Said | Callable[[dict[str, Any]], Said]
Embed = Callable[[dict[str, Any]], list[list[float]] | Response]


class ModelServer:
    """Says its *reply*, or what that makes of a request's body, whole or streamed as the request wants it.

    A reply is a text, the fields of a JSON text, pieces of a text as they come, a body (a mapping
    with ``choices``) or a whole response; *embed* makes vectors or a response of a request's body,
    in base64 where it *packs*. While it
    *holds*, each reply waits until it is *released*. *bodies* and *headers* are what was sent; that
    sets `asked`.
    """

    def __init__(
        self,
        server: HTTPServer,
        reply: Reply = "",
        *,
        embed: Embed | None = None,
        path: str = "/v1",
    ) -> None:
        self.url = server.url_for(path)
        self.reply = reply
        self.packs = True
        self.usage: Mapping[str, Any] = USAGE
        self.holds = False
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Headers] = []
        self.asked, self.released = Event(), Event()
        self._lock = Lock()
        server.expect_request(f"{path}/chat/completions", method="POST").respond_with_handler(
            self._complete
        )
        if embed is not None:
            self._vectors_of = embed
            server.expect_request(f"{path}/embeddings", method="POST").respond_with_handler(
                self._embed
            )

    @property
    def keys(self) -> list[str]:
        """With what authorization it was asked."""
        return [it.get("Authorization", "") for it in self.headers]

    def wait(self) -> None:
        """Wait until it is *released*, or for longer than anybody asks."""
        self.released.wait(PATIENCE)

    def hang(self, body: Mapping[str, Any]) -> Response:
        """A reply that does not come before the test is over."""
        self.wait()
        return failure(503)

    def _read(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = request.get_json()
        with self._lock:
            self.bodies.append(body)
            self.headers.append(request.headers)
        self.asked.set()
        if self.holds:
            self.wait()
        return body

    def _complete(self, request: Request) -> Response:
        body = self._read(request)
        said: Said = (
            self.reply(body)
            if callable(self.reply) and not isinstance(self.reply, Response)
            else self.reply
        )
        if isinstance(said, Response):
            return said
        if isinstance(said, Mapping):
            if "choices" in said:
                return as_json(said)
            said = json.dumps(said)
        if body.get("stream"):
            usage = self.usage if body.get("stream_options", {}).get("include_usage") else None
            return Response(stream(chunks(said, usage=usage)), content_type="text/event-stream")
        return as_json(completion("".join(said), usage=self.usage))

    def _embed(self, request: Request) -> Response:
        body = self._read(request)
        vectors = self._vectors_of(body)
        if isinstance(vectors, Response):
            return vectors
        return as_json(
            embeddings(
                vectors, encoding=body.get("encoding_format", "float") if self.packs else "float"
            )
        )


def as_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with *body*."""
    return Response(json.dumps(body), status, headers, content_type="application/json")


def failure(
    status: int, message: str = "no luck", *, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """A response that refuses."""
    return as_json(error(message, **more), status, headers)
