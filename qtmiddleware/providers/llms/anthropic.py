"""Anthropic's models, through a client of the package ``anthropic``.

The package also has clients for Bedrock, Vertex and Foundry.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final

from qtmiddleware.providers.llms.calls import LONGEST_CONNECT
from qtmiddleware.providers.llms.vendors import (
    Chunk,
    Vendor,
    count_tokens,
    find_limit,
    find_schema,
    make_chunk,
    make_provider_functions,
    split_messages,
)
from qtmiddleware.runtime.fields import read_field

# Models up to Claude 4.6 think only if they are told to, and accept a temperature; later models
# reject it.
_OLDER: Final = re.compile(
    r"claude-(?:v?[1-3]\b|instant|[a-z]+-4(?:-[0-6])?(?:-\d{8}|-v\d|[@:]|$))"
)
_DEFAULT_LIMIT: Final = 4_096
"""How many tokens are asked for if ``llm.maxTokens`` is null: Anthropic requires a number."""
_ENDS: Final = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "end_turn": "stop",
}
# All tokens that were read, whether or not they came from Anthropic's cache.
_READ: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class _Anthropic(Vendor):
    name = "Anthropic"
    package = "anthropic"
    prices = "anthropic"
    provider = "anthropic"
    key = "ANTHROPIC_API_KEY"
    async_client = "AsyncAnthropic"
    calls = ("create",)

    def find_effort(self, model: str) -> str | None:
        return None if _OLDER.search(model) else "none"

    def find_resource(self, client: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        return client.messages

    def find_http(self, client: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        return client._client

    def copy_resource(self, client: Any, http: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        return client.with_options(http_client=http, max_retries=0).messages

    def find_address(self, client: Any) -> str:
        return str(client.base_url)

    def send(self, resource: Any, request: Chunk, seconds: float, *, is_async: bool) -> Any:  # noqa: ARG002
        system, user = split_messages(request)
        # These go into `extra_body`, because it depends on the client's version which of them are
        # parameters.
        body: dict[str, Any] = {}
        config: dict[str, Any] = {}
        if (schema := find_schema(request)) is not None:
            config["format"] = {"type": "json_schema", "schema": schema}
        effort = request.get("reasoning_effort")
        if effort == "none":
            body["thinking"] = {"type": "disabled"}
        elif effort is not None:
            config["effort"] = "low" if effort == "minimal" else effort
        if config:
            body["output_config"] = config
        if (temperature := request.get("temperature")) is not None and _OLDER.search(
            request["model"]
        ):
            body["temperature"] = min(temperature, 1.0)
        options: dict[str, Any] = {"stream": True} if "stream" in request else {}
        return resource.create(
            model=request["model"],
            max_tokens=find_limit(request) or _DEFAULT_LIMIT,
            system=system,
            messages=[{"role": "user", "content": user}],
            extra_body=body,
            timeout=_make_timeout(seconds),
            **options,
        )

    def read_whole(self, answer: Any) -> Any:
        if (content := read_field(answer, "content")) is None:
            return {"choices": [{"message": None}]}
        usage = _Usage()
        usage.add(read_field(answer, "usage"))
        names = {"model": read_field(answer, "model"), "id_": read_field(answer, "id")}
        return make_chunk(
            content, _read_finish_reason(answer), usage.sum_up(), part="message", **names
        )

    def make_reader(self) -> Callable[[Any], Chunk | None]:
        usage = _Usage()
        names: dict[str, Any] = {}

        def read(event: Any) -> Chunk | None:
            message = read_field(event, "message")
            usage.add(read_field(event, "usage") or read_field(message, "usage"))
            if message is not None:
                names.update(model=read_field(message, "model"), id_=read_field(message, "id"))
            delta = read_field(event, "delta")
            text = read_field(delta, "text")
            finish = _read_finish_reason(delta)
            if finish is None and not isinstance(text, str):
                return None
            return make_chunk(text, finish, usage.sum_up() if finish else None, **names)

        return read


class _Usage:
    """The token counts of one reply; each event of a stream reports the total so far."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, usage: Any) -> None:
        counts = {name: read_field(usage, name) for name in (*_READ, "output_tokens")}
        self._counts |= {name: count for name, count in counts.items() if isinstance(count, int)}

    def sum_up(self) -> Chunk:
        return count_tokens(
            sum(self._counts.get(name, 0) for name in _READ), self._counts.get("output_tokens")
        )


def _read_finish_reason(holder: Any) -> str | None:
    end = read_field(holder, "stop_reason")
    return _ENDS.get(end, end) if isinstance(end, str) else None


def _make_timeout(seconds: float) -> Any:
    return sys.modules["anthropic"].Timeout(seconds, connect=min(0.9 * seconds, LONGEST_CONNECT))


accepts, make_model = make_provider_functions(_Anthropic())
