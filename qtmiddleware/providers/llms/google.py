"""Call Google's models through a ``google.genai.Client``, for the Gemini API or for Vertex.

The same client makes synchronous and asynchronous calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from functools import cache
from math import ceil
from typing import Any, Final

from qtmiddleware.providers.llms.vendors import (
    JsonObject,
    Vendor,
    make_chunk,
    make_provider_functions,
    make_usage,
    read_schema,
    read_system_and_user_messages,
    read_token_limit,
)
from qtmiddleware.runtime.fields import read_field

_MIN_SERVER_SECONDS: Final = 10
"""The shortest server timeout that the service accepts, in seconds.

The client itself still stops waiting at the deadline.
"""
_FINISH_REASONS: Final = {"stop": "stop", "max_tokens": "length"}
_REFUSAL_REASONS: Final = frozenset(
    {"safety", "recitation", "blocklist", "prohibited_content", "spii", "language", "escalation"}
)
_OPTIONAL_REASONING_MODELS: Final = re.compile(r"gemini-(?:live-)?2\.5-flash")
_REASONING_MODELS: Final = re.compile(r"gemini-(?:2\.5|[3-9]|flash|pro)")


class _Google(Vendor):
    name = "Google"
    package = "google.genai"
    prices = "google"
    provider = "gcp.gen_ai"
    key = "GEMINI_API_KEY"
    calls = ("generate_content", "generate_content_stream")

    def find_reasoning_effort(self, model: str) -> str | None:
        if _OPTIONAL_REASONING_MODELS.search(model):
            return "none"
        return "low" if _REASONING_MODELS.search(model) else None

    def find_resource(self, client: Any, *, is_async: bool) -> Any:
        return client.aio.models if is_async else client.models

    def find_http_client(self, client: Any, *, is_async: bool) -> Any:
        # The client keeps a separate set of async connections per event loop, which cannot be
        # copied. For Vertex, each client fetches credentials once, and a copy would fetch them
        # again.
        return None if is_async or client._api_client.vertexai else client._api_client._httpx_client

    def copy_resource(self, client: Any, http_client: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        api = copy(client._api_client)
        kind: Any = type(api)
        # The class closes its connections when it is garbage-collected, but the copy does not own
        # them.
        api.__class__ = _make_class_without_destructor(kind)
        api._httpx_client = http_client
        return type(client.models)(api)

    def find_address(self, client: Any) -> str:
        return str(client._api_client._http_options.base_url)

    def send_request(
        self,
        resource: Any,
        request: JsonObject,
        timeout_seconds: float,
        *,
        is_async: bool,  # noqa: ARG002
    ) -> Any:
        system, user = read_system_and_user_messages(request)
        config: dict[str, Any] = {
            "system_instruction": system,
            "temperature": request.get("temperature"),
            "max_output_tokens": read_token_limit(request),
            "automatic_function_calling": {"disable": True},
            "http_options": {
                "timeout": max(1, int(timeout_seconds * 1_000)),
                "headers": {
                    "X-Server-Timeout": str(max(_MIN_SERVER_SECONDS, ceil(timeout_seconds)))
                },
                "retry_options": {"attempts": 1},
            },
        }
        if "response_format" in request:
            config["response_mime_type"] = "application/json"
            config["response_json_schema"] = read_schema(request)
        effort = request.get("reasoning_effort")
        if effort == "none":
            config["thinking_config"] = {"thinking_budget": 0}
        elif effort is not None:
            config["thinking_config"] = {"thinking_level": "high" if effort == "max" else effort}
        call = (
            resource.generate_content_stream if "stream" in request else resource.generate_content
        )
        settings = {name: value for name, value in config.items() if value is not None}
        return call(model=request["model"], contents=user, config=settings)

    def convert_answer(self, answer: Any) -> Any:
        return _convert_answer(answer, "message")

    def make_chunk_reader(self) -> Callable[[Any], JsonObject | None]:
        return lambda event: _convert_answer(event, "delta")


@cache
def _make_class_without_destructor(class_: Any) -> Any:
    return type(class_.__name__, (class_,), {"__del__": lambda _: None})


def _convert_answer(answer: Any, message_key: str) -> JsonObject:
    usage = read_field(answer, "usage_metadata")
    output_counts = [
        read_field(usage, f"{kind}_token_count") or 0 for kind in ("candidates", "thoughts")
    ]
    # The prompt's tokens include those from Google's cache.
    tokens = (
        None
        if usage is None
        else make_usage(read_field(usage, "prompt_token_count"), sum(output_counts))
    )
    candidates = read_field(answer, "candidates")
    if read_field(read_field(answer, "prompt_feedback"), "block_reason"):
        return make_chunk("", "content_filter", tokens, message_key=message_key)
    if not candidates:
        return {"choices": [], "usage": tokens}
    content_parts = read_field(read_field(candidates[0], "content"), "parts") or []
    text = "".join(
        read_field(piece, "text") or ""
        for piece in content_parts
        if not read_field(piece, "thought")
    )
    names = {"model": read_field(answer, "model_version"), "id_": read_field(answer, "response_id")}
    return make_chunk(
        text, _read_finish_reason(candidates[0]), tokens, message_key=message_key, **names
    )


def _read_finish_reason(candidate: Any) -> str | None:
    end = read_field(candidate, "finish_reason")
    if not end:
        return None
    name = str(getattr(end, "value", end)).lower()
    if name.removeprefix("image_") in _REFUSAL_REASONS or name.startswith("pup_"):
        return "content_filter"
    return _FINISH_REASONS.get(name, name)


accepts, make_model = make_provider_functions(_Google())
