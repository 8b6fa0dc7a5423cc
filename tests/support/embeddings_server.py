"""Embeddings over real HTTP, with the limits of OpenAI's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Response

from tests.support.model_server import ModelServer, failure


def vector_of(text: str, dimension: int) -> list[float]:
    """Numbers that depend on the text alone, exact in 32 bits."""
    seed = hashlib.sha256(text.encode()).digest()
    return [(seed[at % 32] - 128) / 128 for at in range(dimension)]


class EmbeddingsServer(ModelServer):
    """Embeds each text by itself and refuses what the service would.

    *tokens* counts the tokens of a text; *most_tokens* is what one may have. *faults* are answered
    first, one a request.
    """

    def __init__(self, server: HTTPServer) -> None:
        super().__init__(server, embed=self._answer)
        self.faults: list[Response] = []
        self.dimension = 8
        self.most_tokens = 8_192
        self.tokens: Callable[[str], int] = lambda text: len(text.encode()) // 4 + 1

    @property
    def sent(self) -> list[list[str]]:
        return [body["input"] for body in self.bodies]

    def expected(self, texts: list[str], dimension: int | None = None) -> list[list[float]]:
        return [vector_of(text, dimension or self.dimension) for text in texts]

    def _answer(self, body: dict[str, Any]) -> list[list[float]] | Response:
        if self.faults:
            return self.faults.pop(0)
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        if len(texts) > 2_048 or not all(texts):
            return failure(400, "'$.input' is invalid. Please check the API reference.")
        if (longest := max(map(self.tokens, texts))) > self.most_tokens:
            return failure(
                400,
                f"This model's maximum context length is {self.most_tokens} tokens, not {longest}.",
            )
        if (total := sum(map(self.tokens, texts))) > 300_000:
            limit = "max_tokens_per_request"
            return failure(
                400, f"Requested {total} tokens, max 300000 tokens per request", code=limit
            )
        return self.expected(texts, body.get("dimensions"))
