"""A server that speaks OpenAI's embeddings over real HTTP and keeps its limits."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

PATH = "/v1/embeddings"


def vector_of(text: str, dimension: int) -> list[float]:
    """Numbers that depend on the text alone, exact in 32 bits."""
    seed = hashlib.sha256(text.encode()).digest()
    return [(seed[at % 32] - 128) / 128 for at in range(dimension)]


class EmbeddingsServer:
    """Answers like the service: in any order, in base64 where asked, and with its refusals.

    *tokens* counts the tokens of a text; *most_tokens* is what one may have. *faults* are answered first, one a
    request.
    """

    def __init__(self, httpserver: HTTPServer) -> None:
        self.requests: list[dict[str, Any]] = []
        self.faults: list[Response] = []
        self.dimension = 8
        self.most_tokens = 8_192
        self.tokens: Callable[[str], int] = lambda text: len(text.encode()) // 4 + 1
        self.base64 = True
        self.url = httpserver.url_for("/v1")
        httpserver.expect_request(PATH, method="POST").respond_with_handler(self._answer)

    @property
    def sent(self) -> list[list[str]]:
        return [request["input"] for request in self.requests]

    def expected(self, texts: list[str], dimension: int | None = None) -> list[list[float]]:
        return [vector_of(text, dimension or self.dimension) for text in texts]

    def _answer(self, request: Request) -> Response:
        asked = request.get_json()
        self.requests.append(asked)
        if self.faults:
            return self.faults.pop(0)
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        if len(texts) > 2_048 or not all(texts):
            return refusal("'$.input' is invalid. Please check the API reference.")
        if (longest := max(map(self.tokens, texts))) > self.most_tokens:
            return refusal(f"This model's maximum context length is {self.most_tokens} tokens, not {longest}.")
        if (total := sum(map(self.tokens, texts))) > 300_000:
            return refusal(f"Requested {total} tokens, max 300000 tokens per request", code="max_tokens_per_request")
        dimension = asked.get("dimensions", self.dimension)
        data = [
            {"object": "embedding", "index": at, "embedding": self._coded(asked, vector_of(text, dimension))}
            for at, text in enumerate(texts)
        ]
        return as_json({"object": "list", "model": asked["model"], "data": data[::-1], "usage": {}})

    def _coded(self, asked: dict[str, Any], vector: list[float]) -> list[float] | str:
        if asked.get("encoding_format") != "base64" or not self.base64:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def as_json(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(json.dumps(body), status=status, content_type="application/json", headers=headers)


def refusal(message: str, *, status: int = 400, code: str | None = None, **headers: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return as_json({"error": error}, status, **{name.replace("_", "-"): value for name, value in headers.items()})
