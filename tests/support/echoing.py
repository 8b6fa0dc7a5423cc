"""A service of models that repeats in its failures all that it was sent, its key too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event
from typing import Any, Final

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.support.emitted import ANSWER, REPLY

FAULTS: Final = ("none", "401", "400", "429", "500", "garbage", "truncated", "shape", "echo", "hang")
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


class EchoingService:
    """Chat completions and embeddings; *fault* is how it fails, *embeds* spares the latter, `requests` counts both."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("/v1")
        self.fault = "none"
        self.embeds = False
        self.requests = 0
        self.released = Event()
        server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._chat)
        server.expect_request("/v1/embeddings", method="POST").respond_with_handler(self._embed)

    def _chat(self, request: Request) -> Response:
        body = request.get_json()
        if (failed := self._failed(request)) is not None:
            return failed
        if body.get("stream"):
            return Response(self._events(self._said(body)), content_type="text/event-stream")
        return _json(_completion({"message": {"role": "assistant", "content": self._said(body)}}))

    def _embed(self, request: Request) -> Response:
        texts = request.get_json()["input"]
        if not self.embeds and (failed := self._failed(request)) is not None:
            return failed
        vectors = [[len(text) / 100, 1.0, 0.5] for text in texts]
        data = [{"object": "embedding", "index": at, "embedding": it} for at, it in enumerate(vectors)]
        return _json({"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}})

    def _failed(self, request: Request) -> Response | None:
        self.requests += 1
        echo = f"{request.headers.get('Authorization')} sent {request.get_data(as_text=True)}"
        match self.fault:
            case "400" | "401" | "429" | "500":
                error = {"message": echo, "type": echo, "param": echo, "code": echo}
                return _json({"error": error}, int(self.fault), {"Retry-After": "0", "X-Echo": "1"})
            case "garbage":
                return Response(f"<html>{echo}", content_type="application/json")
            case "truncated":
                return Response(f'{{"choices": [{{"message": {{"content": {json.dumps(echo)[:-1]}')
            case "shape":
                return _json({"choices": echo, "data": [{"embedding": [echo]}], "error": echo})
            case "echo":
                words = {"role": "assistant", "content": f"I cannot help with {echo}", "refusal": echo}
                return _json({**_completion({"message": words}), "data": [{"index": 0, "embedding": echo}]})
            case "hang":
                self.released.wait(20)
                return Response(status=503)
        return None

    def _said(self, body: dict[str, Any]) -> str:
        asked = json.loads(body["messages"][-1]["content"])
        if "question" in asked and "passages" in asked:
            return f"{ANSWER} is healthy, says the vet [1]."
        return json.dumps(_FIELDS)

    def _events(self, text: str) -> Iterator[str]:
        for word in text.split(" "):
            yield f"data: {json.dumps(_completion({'delta': {'content': word + ' '}}, ended=None))}\n\n"
        yield f"data: {json.dumps(_completion({'delta': {}}))}\n\ndata: [DONE]\n\n"


def _completion(choice: dict[str, Any], *, ended: str | None = "stop") -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choices = [{"index": 0, "finish_reason": ended, **choice}]
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage}


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(body), status, headers, content_type="application/json")
