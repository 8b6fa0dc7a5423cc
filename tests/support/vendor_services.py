"""The services of other vendors, over real HTTP: each speaks its own protocol, to the vendor's own clients."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from threading import Event
from typing import Any, ClassVar

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

KEY = "sk-verysecret0123456789"
HALVES = 7
"""After so many characters a streamed text is cut."""


@dataclass
class Said:
    """What a service says: *text*, and why it ended (``stop``, ``length`` or ``refused``).

    *status* of 400 or more refuses with *message*; *raw* is sent as it is. A stream that *breaks*
    ends after its first piece, and with *error* with what the vendor sends for a failure then.
    """

    text: str = '{"rewrite": "Jaco health"}'
    end: str = "stop"
    status: int = 200
    message: str = "no luck"
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str | None = None
    content_type: str = "application/json"
    breaks: bool = False
    error: bool = False
    hangs: bool = False
    thinks: bool = False


class VendorService:
    """A vendor's service on *server*: says *said*, or what that makes of a request; keeps what it was sent.

    *refuses* are words: a request whose body holds one is refused as one with an unknown parameter.
    """

    name: str
    package: str
    model: str

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("").rstrip("/")
        self.said = Said()
        self.refuses: tuple[str, ...] = ()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.released = Event()
        server.expect_request(self.pattern, method="POST").respond_with_handler(self._answer)

    pattern: Any

    def client(self, *, is_async: bool = False, retries: int = 0) -> Any:
        raise NotImplementedError

    def whole(self, said: Said) -> Any:
        raise NotImplementedError

    def events(self, said: Said) -> Iterator[str]:
        raise NotImplementedError

    def failure(self, status: int, message: str) -> Any:
        raise NotImplementedError

    def streams(self, request: Request) -> bool:
        return bool(request.get_json().get("stream"))

    def _answer(self, request: Request) -> Response:
        self.bodies.append(request.get_json())
        self.paths.append(request.full_path)
        self.headers.append(dict(request.headers))
        said = self.said
        if said.hangs:
            self.released.wait(20)
            said = Said(status=503)
        asked = json.dumps(request.get_json())
        refused = next((it for it in self.refuses if it in asked), None)
        if refused is not None:
            return self._as_json(
                self.failure(400, f"{refused}: this model does not support it"), 400, {}
            )
        if said.status >= 400:
            body = self.failure(said.status, said.message) if said.raw is None else said.raw
            return self._as_json(body, said.status, said.headers)
        if said.raw is not None:
            return Response(said.raw, content_type=said.content_type)
        if self.streams(request):
            return Response(self.events(said), content_type="text/event-stream")
        return self._as_json(self.whole(said), 200, said.headers)

    def _as_json(self, body: Any, status: int, headers: Mapping[str, str]) -> Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return Response(text, status, headers, content_type="application/json")


def event(data: Any, name: str | None = None) -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"


class AnthropicService(VendorService):
    name = "anthropic"
    package = "anthropic"
    model = "claude-sonnet-4-6"
    pattern = "/v1/messages"
    ends: ClassVar = {"stop": "end_turn", "length": "max_tokens", "refused": "refusal"}

    def client(self, *, is_async: bool = False, retries: int = 0, **options: Any) -> Any:
        module = import_module("anthropic")
        kind = module.AsyncAnthropic if is_async else module.Anthropic
        return kind(api_key=KEY, base_url=self.url, max_retries=retries, **options)

    def _message(self, content: Any, end: str | None, usage: Any) -> dict[str, Any]:
        head = {"id": "m", "type": "message", "role": "assistant", "model": self.model}
        return {
            **head,
            "content": content,
            "stop_reason": end,
            "stop_sequence": None,
            "usage": usage,
        }

    def whole(self, said: Said) -> Any:
        text = "" if said.end == "refused" else said.text
        content: list[Any] = [{"type": "text", "text": text}] if text else []
        if said.thinks:
            content.insert(0, {"type": "thinking", "thinking": "Let me see.", "signature": "s"})
        usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 20}
        return self._message(content, self.ends[said.end], usage)

    def events(self, said: Said) -> Iterator[str]:
        usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 1}
        start = {"type": "message_start", "message": self._message([], None, usage)}
        yield event(start, "message_start")
        block = {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        }
        yield event(block, "content_block_start")
        yield event({"type": "ping"}, "ping")
        for part in (said.text[:HALVES], said.text[HALVES:]):
            delta = {"type": "text_delta", "text": part}
            yield event(
                {"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta"
            )
            if said.error:
                yield event(self.failure(529, said.message), "error")
            if said.breaks:
                return
        yield event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        last = {
            "type": "message_delta",
            "delta": {"stop_reason": self.ends[said.end], "stop_sequence": None},
        }
        yield event({**last, "usage": {"output_tokens": 20}}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def failure(self, status: int, message: str) -> Any:
        kinds = {
            401: "authentication_error",
            429: "rate_limit_error",
            529: "overloaded_error",
            404: "not_found_error",
        }
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


class MistralService(VendorService):
    name = "mistral"
    package = "mistralai.client"
    model = "mistral-small-latest"
    pattern = "/v1/chat/completions"
    ends: ClassVar = {"stop": "stop", "length": "length", "refused": "content_filter"}

    def client(self, *, is_async: bool = False, retries: int = 0, **options: Any) -> Any:
        # Version 1 of the package keeps them at its top.
        root = "mistralai.client" if find_spec("mistralai.client.sdk") else "mistralai"
        module = import_module(root)
        if retries:
            utils = import_module(f"{root}.utils")
            backoff = utils.BackoffStrategy(1, 10, 1.1, 1_000)
            options["retry_config"] = utils.RetryConfig("backoff", backoff, True)
        return module.Mistral(api_key=KEY, server_url=self.url, **options)

    def _completion(self, choice: Any, usage: bool) -> Any:
        counts = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        head = {"id": "c", "object": "chat.completion", "model": self.model, "created": 1}
        return {**head, "choices": [{"index": 0, **choice}], **({"usage": counts} if usage else {})}

    def whole(self, said: Said) -> Any:
        content: Any = "" if said.end == "refused" else said.text
        if said.thinks:
            thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}
            content = [thought, {"type": "text", "text": content}]
        message = {"role": "assistant", "content": content}
        return self._completion(
            {"message": message, "finish_reason": self.ends[said.end]}, usage=True
        )

    def events(self, said: Said) -> Iterator[str]:
        for part in (said.text[:HALVES], said.text[HALVES:]):
            delta = {"delta": {"content": part}, "finish_reason": None}
            yield event(self._completion(delta, usage=False))
            if said.error:
                yield event(
                    self._completion(
                        {"delta": {"content": ""}, "finish_reason": "error"}, usage=False
                    )
                )
            if said.breaks:
                return
        end = {"delta": {"content": ""}, "finish_reason": self.ends[said.end]}
        yield event(self._completion(end, usage=True))
        yield "data: [DONE]\n\n"

    def failure(self, status: int, message: str) -> Any:
        if status == 422:
            return {"detail": [{"loc": ["body"], "msg": message, "type": "extra_forbidden"}]}
        return {
            "object": "error",
            "message": message,
            "type": "invalid_request",
            "param": None,
            "code": "1000",
        }


class GoogleService(VendorService):
    name = "google"
    package = "google.genai"
    model = "gemini-2.5-flash"
    ends: ClassVar = {"stop": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY"}

    pattern = re.compile(r"/v1(beta)?/models/.*")

    def client(self, *, is_async: bool = False, retries: int = 0, **options: Any) -> Any:
        module = import_module("google.genai")
        http: dict[str, Any] = {"base_url": self.url}
        if retries:
            http["retry_options"] = {
                "attempts": retries + 1,
                "initial_delay": 0.01,
                "max_delay": 0.02,
            }
        return module.Client(api_key=KEY, http_options={**http, **options})

    def streams(self, request: Request) -> bool:
        return "streamGenerateContent" in request.path

    def _response(self, text: str | None, end: str | None, *, thinks: bool = False) -> Any:
        parts = [] if text is None else [{"text": text}]
        if thinks:
            parts.insert(0, {"text": "Let me see.", "thought": True})
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if end is not None:
            candidate["finishReason"] = end
        usage = {"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 15}
        counts = {**usage, "thoughtsTokenCount": 5, "totalTokenCount": 120}
        named = {"modelVersion": self.model, "responseId": "g"}
        return {"candidates": [candidate], "usageMetadata": counts, **named}

    def whole(self, said: Said) -> Any:
        if said.end == "blocked":
            return {
                "promptFeedback": {"blockReason": "SAFETY"},
                "usageMetadata": {"promptTokenCount": 100},
            }
        text = None if said.end == "refused" else said.text
        return self._response(text, self.ends[said.end], thinks=said.thinks)

    def events(self, said: Said) -> Iterator[str]:
        yield event(self._response(said.text[:HALVES], None))
        if said.error:
            yield event(self.failure(503, said.message))
        if said.breaks:
            return
        yield event(self._response(said.text[HALVES:], self.ends[said.end]))

    def failure(self, status: int, message: str) -> Any:
        name = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}.get(
            status, "UNKNOWN"
        )
        return {"error": {"code": status, "message": message, "status": name}}


VENDORS: dict[str, type[VendorService]] = {
    it.name: it for it in (AnthropicService, MistralService, GoogleService)
}
