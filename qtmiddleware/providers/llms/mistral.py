"""Call Mistral's models through a client of the package ``mistralai``.

The same client makes synchronous and asynchronous calls.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final

from qtmiddleware.providers.llms.vendors import (
    JsonObject,
    Vendor,
    make_provider_functions,
    read_token_limit,
)
from qtmiddleware.runtime.fields import read_field

_SHARED_OPTIONS: Final = ("model", "messages", "response_format", "temperature", "reasoning_effort")


class _Mistral(Vendor):
    name = "Mistral"
    package = "mistralai"
    prices = "mistral"
    provider = "mistral_ai"
    key = "MISTRAL_API_KEY"
    calls = ("complete", "complete_async", "stream", "stream_async")

    def find_resource(self, client: Any, *, is_async: bool) -> Any:  # noqa: ARG002
        return client.chat

    def find_http_client(self, client: Any, *, is_async: bool) -> Any:
        config = client.sdk_configuration
        return config.async_client if is_async else config.client

    def copy_resource(self, client: Any, http_client: Any, *, is_async: bool) -> Any:
        config = copy(client.sdk_configuration)
        setattr(config, "async_client" if is_async else "client", http_client)
        return type(client.chat)(config, parent_ref=client)

    def find_address(self, client: Any) -> str:
        return str(client.sdk_configuration.get_server_details()[0])

    def send_request(
        self, resource: Any, request: JsonObject, timeout_seconds: float, *, is_async: bool
    ) -> Any:
        options = {name: request[name] for name in _SHARED_OPTIONS if name in request}
        if (limit := read_token_limit(request)) is not None:
            options["max_tokens"] = limit
        call = ("stream" if "stream" in request else "complete") + ("_async" if is_async else "")
        # `retries=None` turns retries off; without the argument, the client's own retries apply.
        return getattr(resource, call)(
            **options, retries=None, timeout_ms=max(1, int(timeout_seconds * 1_000))
        )

    def convert_answer(self, answer: Any) -> Any:
        return _convert_answer(answer)

    def make_chunk_reader(self) -> Callable[[Any], JsonObject | None]:
        return lambda event: _convert_answer(read_field(event, "data"))


def _convert_answer(answer: Any) -> Any:
    """Convert Mistral's *answer* to OpenAI's format.

    Only the finish reason ``model_length`` is changed, to ``length``.
    """
    choices = read_field(answer, "choices")
    if (
        isinstance(choices, list)
        and choices
        and read_field(choices[0], "finish_reason") == "model_length"
    ):
        choice_fields = {name: read_field(choices[0], name) for name in ("delta", "message")}
        names = {name: read_field(answer, name) for name in ("usage", "model", "id")}
        return {"choices": [{**choice_fields, "finish_reason": "length"}], **names}
    return answer


accepts, make_model = make_provider_functions(_Mistral())
