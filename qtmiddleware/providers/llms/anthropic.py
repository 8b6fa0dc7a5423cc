"""Call Anthropic's models through a client of the package ``anthropic``.

The package also has clients for Bedrock, Vertex and Foundry.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final

from qtmiddleware.providers.llms.calls import LONGEST_CONNECT
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

# Models up to Claude 4.6 reason only on request, and accept a temperature. Later models reject it.
_OLDER_MODELS: Final = re.compile(
    r"claude-(?:v?[1-3]\b|instant|[a-z]+-4(?:-[0-6])?(?:-\d{8}|-v\d|[@:]|$))"
)
_DEFAULT_LIMIT: Final = 4_096
"""The token limit if ``llm.maxTokens`` is null, because Anthropic requires a limit."""
_FINISH_REASONS: Final = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "end_turn": "stop",
}
# The counts of input tokens. Tokens from Anthropic's cache are counted separately.
_INPUT_TOKEN_FIELDS: Final = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class _Anthropic(Vendor):
    name = "Anthropic"
    package = "anthropic"
    prices = "anthropic"
    provider = "anthropic"
    key = "ANTHROPIC_API_KEY"
    async_client = "AsyncAnthropic"
    calls = ("create",)

    def find_reasoning_effort(self, model: str) -> str | None:
        return None if _OLDER_MODELS.search(model) else "none"

    def find_resource(self, client: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        return client.messages

    def find_http_client(self, client: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        return client._client

    def copy_resource(self, client: Any, http_client: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        return client.with_options(http_client=http_client, max_retries=0).messages

    def find_address(self, client: Any) -> str:
        return str(client.base_url)

    def send_request(
        self,
        resource: Any,
        request: JsonObject,
        timeout_seconds: float,
        *,
        is_async: bool,  # noqa: ARG002
    ) -> Any:
        system, user = read_system_and_user_messages(request)
        options: dict[str, Any] = {"stream": True} if "stream" in request else {}
        config: dict[str, Any] = {}
        if (schema := read_schema(request)) is not None:
            config["format"] = {"type": "json_schema", "schema": schema}
        effort = request.get("reasoning_effort")
        if effort == "none":
            options["thinking"] = {"type": "disabled"}
        elif effort is not None:
            config["effort"] = "low" if effort == "minimal" else effort
        if config:
            options["output_config"] = config
        if (temperature := request.get("temperature")) is not None and _OLDER_MODELS.search(
            request["model"]
        ):
            # The client has no parameter for it, because later models reject it.
            options["extra_body"] = {"temperature": min(temperature, 1.0)}
        return resource.create(
            model=request["model"],
            max_tokens=read_token_limit(request) or _DEFAULT_LIMIT,
            system=system,
            messages=[{"role": "user", "content": user}],
            timeout=_make_timeout(timeout_seconds),
            **options,
        )

    def convert_answer(self, answer: Any) -> Any:
        if (content := read_field(answer, "content")) is None:
            return {"choices": [{"message": None}]}
        token_counts = _TokenCounts()
        token_counts.update_counts(read_field(answer, "usage"))
        names = {"model": read_field(answer, "model"), "id_": read_field(answer, "id")}
        return make_chunk(
            content,
            _read_finish_reason(answer),
            token_counts.build_usage(),
            message_key="message",
            **names,
        )

    def make_chunk_reader(self) -> Callable[[Any], JsonObject | None]:
        token_counts = _TokenCounts()
        names: dict[str, Any] = {}

        def read_event(event: Any) -> JsonObject | None:
            message = read_field(event, "message")
            token_counts.update_counts(read_field(event, "usage") or read_field(message, "usage"))
            if message is not None:
                names.update(model=read_field(message, "model"), id_=read_field(message, "id"))
            delta = read_field(event, "delta")
            text = read_field(delta, "text")
            finish_reason = _read_finish_reason(delta)
            if finish_reason is None and not isinstance(text, str):
                return None
            # The counts are complete when the finish reason arrives.
            return make_chunk(
                text, finish_reason, token_counts.build_usage() if finish_reason else None, **names
            )

        return read_event


class _TokenCounts:
    """The token counts of one reply. In a stream, each event reports the totals so far."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def update_counts(self, usage: Any) -> None:
        counts = {name: read_field(usage, name) for name in (*_INPUT_TOKEN_FIELDS, "output_tokens")}
        self._counts |= {name: count for name, count in counts.items() if isinstance(count, int)}

    def build_usage(self) -> JsonObject:
        return make_usage(
            sum(self._counts.get(name, 0) for name in _INPUT_TOKEN_FIELDS),
            self._counts.get("output_tokens"),
        )


def _read_finish_reason(answer_or_delta: Any) -> str | None:
    end = read_field(answer_or_delta, "stop_reason")
    return _FINISH_REASONS.get(end, end) if isinstance(end, str) else None


def _make_timeout(max_seconds: float) -> Any:
    return sys.modules["anthropic"].Timeout(
        max_seconds, connect=min(0.9 * max_seconds, LONGEST_CONNECT)
    )


accepts, make_model = make_provider_functions(_Anthropic())
