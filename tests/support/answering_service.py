"""A chat completions service that transforms questions and answers them from the passages it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event
from typing import Any, Final

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

TRANSFORMED: Final = {
    "rewrite": "Which conditions does the dog Jaco suffer from?",
    "step_back": "How healthy is Jaco?",
    "sub_queries": ["What did the vet find in May?", "Which illnesses do older dogs have?"],
    "paraphrases": ["Is Jaco ill?"],
    "hyde": "Jaco is healthy according to the vet.",
    "keywords": ["vet", "arthritis"],
}
USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


class AnsweringService:
    """Answers with the words of the first passage and ``[1]``, streamed word by word where that is asked for.

    *requests* holds what it was asked, read from the user messages, and *keys* with what authorization. *text* is said
    instead of the passage. While *holds* is set an answer waits after its first words; those to the questions in
    *refused* fail.
    """

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("/v1")
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.text = ""
        self.holds = False
        self.refused: set[str] = set()
        self.released = Event()
        server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._handle)

    @property
    def answered(self) -> list[dict[str, Any]]:
        """The questions that were to be answered."""
        return [it for it in self.requests if "question" in it]

    @property
    def transformed(self) -> list[dict[str, Any]]:
        """The questions that were to be transformed."""
        return [it for it in self.requests if "query" in it]

    def _handle(self, request: Request) -> Response:
        body = json.loads(request.data)
        asked = json.loads(body["messages"][-1]["content"])
        self.requests.append(asked)
        self.keys.add(request.headers.get("Authorization", ""))
        if asked.get("question") in self.refused:
            return _json({"error": {"message": "overloaded", "type": "server_error"}}, status=503)
        text = self._answer(asked) if "question" in asked else json.dumps(self._transformation(asked))
        if body.get("stream"):
            return Response(self._events(text), content_type="text/event-stream")
        self._wait()
        message = {"role": "assistant", "content": text}
        return _json({**_HEAD, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE})

    def _answer(self, asked: dict[str, Any]) -> str:
        return self.text or f"{asked['passages'][0]['text']} [1]"

    def _transformation(self, asked: dict[str, Any]) -> dict[str, Any]:
        if not asked.get("history"):
            return TRANSFORMED
        # As a model would: the subject comes out of the question before.
        return {**TRANSFORMED, "standalone": f"{asked['query'].rstrip('?')} of Jaco?"}

    def _events(self, text: str) -> Iterator[str]:
        words = text.split(" ")
        for at, word in enumerate(words):
            yield _event({"content": word if at == 0 else f" {word}"}, None)
            if at == 1:
                self._wait()
        yield _event({}, "stop")
        yield f"data: {json.dumps({**_CHUNK, 'choices': [], 'usage': USAGE})}\n\n"
        yield "data: [DONE]\n\n"

    def _wait(self) -> None:
        if self.holds:
            self.released.wait(20)


_HEAD: Final = {"id": "c", "object": "chat.completion", "created": 0, "model": "gpt-6-luna"}
_CHUNK: Final = {**_HEAD, "object": "chat.completion.chunk"}


def _json(body: dict[str, Any], *, status: int = 200) -> Response:
    return Response(json.dumps(body), status=status, content_type="application/json")


def _event(delta: dict[str, Any], finish: str | None) -> str:
    return f"data: {json.dumps({**_CHUNK, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"
