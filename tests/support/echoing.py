"""A service of models that repeats in its failures all that it was sent, its key too."""

from __future__ import annotations

import json
from typing import Any, Final

from pytest_httpserver import HTTPServer
from werkzeug import Response

from tests.support.completions import completion
from tests.support.emitted import ANSWER, REPLY
from tests.support.model_server import ModelServer, Said, as_json

FAULTS: Final = (
    "none",
    "401",
    "400",
    "429",
    "500",
    "garbage",
    "truncated",
    "shape",
    "echo",
    "hang",
)
_FIELDS: Final = {
    "standalone": f"What about {REPLY} qmarkzebulon?",
    "rewrite": f"Which illness does {REPLY} qmarkzebulon have?",
    "step_back": f"How healthy is {REPLY}?",
    "sub_queries": [f"What did the vet find at {REPLY}?", f"What is {REPLY} of qmarkzebulon?"],
    "paraphrases": [f"Is {REPLY} ill?", f"Is {REPLY} qmarkzebulon fit?"],
    "hyde": f"{REPLY} qmarkzebulon is healthy according to the vet.",
    "keywords": [REPLY, "vet"],
    "context": f"It is about {REPLY} at the shelter.",
}


class EchoingService(ModelServer):
    """Completions and embeddings; *fault* is how it fails, and *embeds* spares the latter."""

    def __init__(self, server: HTTPServer) -> None:
        super().__init__(server, self._say, embed=self._embeddings)
        self.fault = "none"
        self.embeds = False

    def _say(self, body: dict[str, Any]) -> Said:
        if (failed := self._failed(body)) is not None:
            return failed
        asked = json.loads(body["messages"][-1]["content"])
        if "question" in asked and "passages" in asked:
            return f"{ANSWER} is healthy, says the vet [1]."
        return _FIELDS

    def _embeddings(self, body: dict[str, Any]) -> list[list[float]] | Response:
        if not self.embeds and (failed := self._failed(body)) is not None:
            return failed
        return [[len(text) / 100, 1.0, 0.5] for text in body["input"]]

    def _failed(self, body: dict[str, Any]) -> Response | None:
        echo = f"{self.keys[-1]} sent {json.dumps(body, ensure_ascii=False)}"
        match self.fault:
            case "400" | "401" | "429" | "500":
                error = {"message": echo, "type": echo, "param": echo, "code": echo}
                return as_json(
                    {"error": error}, int(self.fault), {"Retry-After": "0", "X-Echo": "1"}
                )
            case "garbage":
                return Response(f"<html>{echo}", content_type="application/json")
            case "truncated":
                return Response(f'{{"choices": [{{"message": {{"content": {json.dumps(echo)[:-1]}')
            case "shape":
                return as_json({"choices": echo, "data": [{"embedding": [echo]}], "error": echo})
            case "echo":
                said = completion(f"I cannot help with {echo}", refusal=echo)
                return as_json({**said, "data": [{"index": 0, "embedding": echo}]})
            case "hang":
                return self.hang(body)
        return None
