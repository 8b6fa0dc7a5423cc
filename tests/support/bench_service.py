"""A chat completions service that transforms, answers, writes questions and judges, as its prompts ask."""

from __future__ import annotations

import json
from collections import Counter
from threading import Event, Lock
from typing import Any, Final

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.support.testset_world import CHECKED, NAMES, sentence

USAGE: Final = {"prompt_tokens": 300, "completion_tokens": 80, "total_tokens": 380}


class BenchService:
    """Counts in *asked* the prompts it got, by their mode, and refuses all of them with *status* where that is set.

    After *holds_after* prompts, where that is set, it makes everybody wait until it is *released*.
    """

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("/v1")
        self.asked: Counter[str] = Counter()
        self.status = 200
        self.holds_after: int | None = None
        self.released = Event()
        self._lock = Lock()
        server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._handle)

    def _handle(self, request: Request) -> Response:
        body = json.loads(request.data)
        mode = body.get("response_format", {}).get("json_schema", {}).get("name", "text")
        with self._lock:
            self.asked[mode] += 1
            waits = self.holds_after is not None and self.asked.total() > self.holds_after
        if waits:
            self.released.wait(30)
        if self.status != 200:
            said: dict[str, Any] = {"error": {"message": "no", "type": "error", "code": None}}
            return Response(json.dumps(said), status=self.status, content_type="application/json")
        message = {"role": "assistant", "content": _said(mode, body["messages"][-1]["content"])}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "gpt-6-luna", "choices": choices}
        return Response(json.dumps({**reply, "usage": USAGE}), content_type="application/json")


def _said(mode: str, user: str) -> str:
    asked = json.loads(user)
    if mode.startswith("test_"):
        name = next(name for name in NAMES if f"{name} Bridge" in asked["passage"])
        if mode == CHECKED:
            return json.dumps({"quote": sentence(name), "answers": "yes"})
        return json.dumps({"question": f"When could people drive over {name} Bridge?", "answer": sentence(name)[-5:-1]})
    if mode == "judge":
        marks = {f"{name}_{what}": "7" for name in "ab" for what in ("accuracy", "completeness", "relevance")}
        return json.dumps({"reason": "They say the same.", **marks, "better": "neither"})
    if "passages" in asked:
        return f"{asked['passages'][0]['text'][:60]} [1]"
    query = asked["query"]
    return json.dumps(
        {
            "standalone": query,
            "rewrite": f"{query.rstrip('?')} exactly?",
            "step_back": f"What is known about {' '.join(query.rstrip('?').split()[-2:])}?",
            "sub_queries": [f"{query.rstrip('?')} at first?", f"{query.rstrip('?')} at last?"],
            "paraphrases": [f"Tell me: {query}"],
            "hyde": f"It is known that {query.rstrip('?')}.",
            "keywords": query.rstrip("?").split()[-2:],
        }
    )
