"""Call the models of other vendors through the vendors' own clients.

Each vendor's module only translates formats: it turns a request for a chat completion into a call
of the vendor's client, and the client's answer into a completion or its chunks. `OpenAIModel` does
everything else, such as fallbacks and streams. The vendor's package is not imported, because the
user has already imported it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.providers.llms.calls import find_request_timeout
from qtmiddleware.providers.llms.openai import OpenAIModel, build_model_options
from qtmiddleware.providers.llms.openai.clients import (
    Clients,
    copy_with_empty_pools,
    has_copyable_pools,
)
from qtmiddleware.providers.llms.openai.prices import find_prices
from qtmiddleware.providers.llms.openai.requests import Received
from qtmiddleware.providers.openai_client import (
    copy_with_limited_error_bodies,
    find_provider,
    limit_error_bodies,
    read_host,
)
from qtmiddleware.types import Deadline

DEFAULT_MODELS: Final = frozenset({Settings().transformation_model, Settings().chat_model})
"""The default models in the settings, which only OpenAI offers."""

JsonObject = Mapping[str, Any]
"""A request, a completion, or a chunk of a completion, in OpenAI's format."""


class Vendor(ABC):
    """Translates requests and answers between OpenAI's format and one vendor's client.

    A *resource* is an object inside the client, such as ``client.messages``. Its methods call the
    service.
    """

    name: str
    """The vendor's name in messages."""
    package: str
    """The package with the vendor's clients."""
    prices: str
    """The vendor's name in the package genai-prices."""
    provider: str
    """The vendor's name in OpenTelemetry. A known host, such as Bedrock's, overrides it."""
    key: str
    """The name of the environment variable with the vendor's API key."""
    async_client: str = ""
    """The name of the async client's class; ``""`` if one client makes sync and async calls."""

    def accepts(self, candidate: Any) -> bool:
        """Return whether *candidate* is this vendor's client, or a tuple or list of its clients.

        The vendor's package is not imported.
        """
        members = candidate if isinstance(candidate, tuple | list) else (candidate,)
        return bool(members) and all(self._is_client(member) for member in members)

    def _is_client(self, candidate: Any) -> bool:
        classes = type(candidate).__mro__
        if isinstance(candidate, type) or not any(
            class_.__module__.startswith(f"{self.package}.") for class_ in classes
        ):
            return False
        try:
            return hasattr(self.find_resource(candidate, is_async=False), self.calls[0])
        except AttributeError:
            return False

    calls: tuple[str, ...]
    """The resource's methods that call the service.

    If a tracing library has replaced one of these methods, the resource is not copied.
    """

    def find_reasoning_effort(self, model: str) -> str | None:  # noqa: ARG002
        """Return the least reasoning effort that *model* accepts; ``None`` to send no effort."""
        return None

    @abstractmethod
    def find_resource(self, client: Any, *, is_async: bool) -> Any:
        """Return the resource of *client*: an object whose methods call the service.

        If *is_async* is true, the methods must be asynchronous.
        """

    @abstractmethod
    def find_http_client(self, client: Any, *, is_async: bool) -> Any:
        """Return the HTTP client inside *client*; ``None`` if *client* must be used uncopied."""

    @abstractmethod
    def copy_resource(self, client: Any, http_client: Any, *, is_async: bool) -> Any:
        """Return a copy of the resource in *client*.

        The copy uses *http_client*, an `httpx2` client, and does not retry.
        """

    @abstractmethod
    def find_address(self, client: Any) -> str:
        """Return the address of the service that *client* calls."""

    @abstractmethod
    def send_request(
        self, resource: Any, request: JsonObject, timeout_seconds: float, *, is_async: bool
    ) -> Any:
        """Send *request*, and return the client's answer, or an awaitable if *is_async* is true.

        If *request* asks for a stream, the answer is an iterator of events.
        """

    @abstractmethod
    def convert_answer(self, answer: Any) -> Any:
        """Convert *answer*, the client's whole answer, to a completion in OpenAI's format."""

    @abstractmethod
    def make_chunk_reader(self) -> Callable[[Any], JsonObject | None]:
        """Return a function that converts the events of one stream to chunks in OpenAI's format.

        The function returns ``None`` for an event that carries neither text nor a finish reason.
        """


def read_system_and_user_messages(request: JsonObject) -> tuple[str, str]:
    """Return the system message and the user message of *request*."""
    system, user = request["messages"]
    return system["content"], user["content"]


def read_token_limit(request: JsonObject) -> int | None:
    """Return the token limit of *request*; ``None`` if it has no limit."""
    limit: int | None = request.get("max_tokens", request.get("max_completion_tokens"))
    return limit


def read_schema(request: JsonObject) -> dict[str, Any] | None:
    """Return the JSON schema that *request* asks for; ``None`` if there is none."""
    json_schema: dict[str, Any] = request.get("response_format", {}).get("json_schema", {})
    return json_schema.get("schema")


def make_chunk(
    text: Any,
    finish_reason: str | None,
    usage: JsonObject | None,
    *,
    message_key: str = "delta",
    model: Any = None,
    id_: Any = None,
) -> JsonObject:
    """Return a chunk or a completion with *text*, in OpenAI's format.

    Args:
        text: The text that the model wrote.
        finish_reason: The reason for the end of the answer; ``None`` if the answer continues.
        usage: The token counts, as returned by `make_usage`; ``None`` if they are unknown.
        message_key: ``delta`` makes a chunk, ``message`` makes a completion.
        model: The name of the model that answered.
        id_: The completion's id, as the service reports it.
    """
    choices = [{message_key: {"content": text}, "finish_reason": finish_reason}]
    return {"choices": choices, "usage": usage, "model": model, "id": id_}


def make_usage(input_tokens: int | None, output_tokens: int | None) -> JsonObject:
    """Return the token counts in the format of OpenAI's completions."""
    return {"prompt_tokens": input_tokens or 0, "completion_tokens": output_tokens or 0}


@dataclass
class _CopiedResource:
    """A copy of a client's resource and the copy's HTTP client. Closing this object closes both."""

    resource: Any
    http: Any

    def is_closed(self) -> bool:
        return bool(self.http.is_closed)

    def close(self) -> Any:
        return self.http.aclose() if hasattr(self.http, "aclose") else self.http.close()


class VendorClients(Clients):
    """Provides copies of the resources in a user's clients.

    A resource is an object inside a client, such as ``client.messages``. Its methods call the
    service. The user's clients are never closed or changed.

    For a synchronous call, the copy shares the client's connections and limits error bodies. In a
    forked process, and in each event loop, the copy has its own connections. If a client's HTTP
    client is not found, or a tracing library has replaced its methods, the client is used directly.
    """

    def __init__(self, client: Any, vendor: Vendor) -> None:
        super().__init__(client, None)
        self._vendor = vendor
        self._async_kind = f"{vendor.package}.{vendor.async_client}()"
        if not vendor.async_client:
            self._user_async_client = self._user_sync_client

    @property
    def host(self) -> str:
        """The server's host, without path, user or password."""
        address = self._find_server_address()
        return read_host(address) if address else self._vendor.name

    def _find_server_address(self) -> str:
        client = (
            self._user_sync_client
            if self._user_sync_client is not None
            else self._user_async_client
        )
        try:
            return self._vendor.find_address(client)
        except Exception:
            # Vendors keep the address in private attributes, which another version may lack.
            return ""

    def get_sync_client(self) -> Any:
        """Return the resource for a synchronous call.

        This is a copy of the user's resource, or the resource itself if no copy can be made.
        """
        client = self._user_sync_client
        http = self._find_http_client(client, is_async=False)
        if http is None:
            return self._vendor.find_resource(client, is_async=False)
        # In a forked process the parent's sockets must not be used.
        if os.getpid() != self._process and has_copyable_pools(http):
            return self._per_process.get_client(self._make_sync_client).resource
        return self._vendor.copy_resource(
            client, copy_with_limited_error_bodies(http), is_async=False
        )

    async def get_async_client(self) -> Any:
        """Return the resource for an asynchronous call in the running event loop."""
        resource = await super().get_async_client()
        return (
            resource.resource
            if isinstance(resource, _CopiedResource)
            else self._vendor.find_resource(resource, is_async=True)
        )

    def _find_http_client(self, client: Any, *, is_async: bool) -> Any:
        resource = self._vendor.find_resource(client, is_async=is_async)
        # A tracing library may have replaced a method. A copy would bypass it.
        if any(call in vars(resource) for call in self._vendor.calls):
            return None
        try:
            http = self._vendor.find_http_client(client, is_async=is_async)
        except AttributeError:
            # Another version of the package may keep its HTTP client elsewhere.
            return None
        return http if hasattr(http, "event_hooks") else None

    def _can_copy(self, client: Any) -> bool:
        http = self._find_http_client(client, is_async=True)
        return http is not None and has_copyable_pools(http)

    def _copy_client(self, client: Any, *, is_async: bool = True) -> Any:
        http = copy_with_empty_pools(self._find_http_client(client, is_async=is_async))
        limit_error_bodies(http)
        return _CopiedResource(self._vendor.copy_resource(client, http, is_async=is_async), http)

    def _make_sync_client(self) -> Any:
        return self._copy_client(self._user_sync_client, is_async=False)


class VendorModel(OpenAIModel):
    """Calls a vendor's model through a *client* of the vendor's package.

    Options, deadlines, fallbacks and token counts work as in `OpenAIModel`. If the server sends its
    answer very slowly, the caller stops waiting at the deadline, but a daemon thread keeps reading.
    """

    def __init__(self, vendor: Vendor, model: str, *, client: Any, **options: Any) -> None:
        self._vendor = vendor
        self._price_list = vendor.prices
        self._find_reasoning_effort = vendor.find_reasoning_effort
        self._advice = {"key": vendor.key, "address": "the client's address"}
        super().__init__(model, client=VendorClients(client, vendor), **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, host={self._clients.host!r})"

    @property
    def provider(self) -> str:
        """The provider's name in OpenTelemetry."""
        return find_provider(self._clients.host, self._vendor.provider)

    def warm_up(self) -> None:
        """Load the modules and prices that the first request needs. No request is sent."""
        find_prices(self._model, self._price_list)
        if self._clients.has_sync_client:
            self._clients.get_sync_client()

    def _send_request(
        self, request: dict[str, Any], deadline: Deadline, stack: ExitStack
    ) -> Received:
        seconds = find_request_timeout(deadline)
        with _convert_vendor_errors():
            answer = self._vendor.send_request(
                self._clients.get_sync_client(), request, seconds, is_async=False
            )
            if "stream" not in request:
                return iter((self._vendor.convert_answer(answer),)), 0
            if hasattr(answer, "close"):
                stack.callback(answer.close)
            events = iter(answer)
            # Some clients send the request only when the first event is read.
            first_event = next(events, None)
        return self._read_events(first_event, events), 0

    def _read_events(self, first_event: Any, later_events: Iterator[Any]) -> Iterator[JsonObject]:
        read_chunk = self._vendor.make_chunk_reader()
        with _convert_vendor_errors():
            while first_event is not None:
                if (chunk := read_chunk(first_event)) is not None:
                    yield chunk
                first_event = next(later_events, None)

    async def _asend_request(
        self, request: dict[str, Any], deadline: Deadline, stack: AsyncExitStack
    ) -> Received:
        resource = await self._clients.get_async_client()
        seconds = find_request_timeout(deadline)
        with _convert_vendor_errors():
            async with asyncio.timeout(seconds):
                answer = await self._vendor.send_request(resource, request, seconds, is_async=True)
                if "stream" not in request:
                    return _yield_once(self._vendor.convert_answer(answer)), 0
                close = getattr(answer, "close", None) or getattr(answer, "aclose", None)
                if close is not None:
                    stack.push_async_callback(close)
                events = aiter(answer)
                first_event = await anext(events, None)
        return self._aread_events(first_event, events), 0

    async def _aread_events(
        self, first_event: Any, later_events: AsyncIterator[Any]
    ) -> AsyncIterator[JsonObject]:
        read_chunk = self._vendor.make_chunk_reader()
        with _convert_vendor_errors():
            while first_event is not None:
                if (chunk := read_chunk(first_event)) is not None:
                    yield chunk
                first_event = await anext(later_events, None)


async def _yield_once(answer: Any) -> AsyncIterator[Any]:
    yield answer


def make_vendor_model(vendor: Vendor, client: Any, settings: Settings) -> VendorModel:
    """Return a model that calls *client*, with the model name and the options from *settings*.

    The model name is ``transformationModel``, or ``chatModel`` if ``transformationModel`` has its
    default value, because only OpenAI offers the default models. Raises `ConfigError` if both
    settings have default values.
    """
    names = (settings.transformation_model, settings.chat_model)
    model = next((name for name in names if name not in DEFAULT_MODELS), None)
    if model is None:
        raise ConfigError(
            f"{names[0]} is not a model of {vendor.name}; with a {vendor.name} client, set"
            " transformationModel (and chatModel, if another model answers)",
            path="transformationModel",
            value=names[0],
            allowed=f"the name of a model of {vendor.name}",
        )
    return VendorModel(vendor, model, client=client, **build_model_options(settings))


def make_provider_functions(
    vendor: Vendor,
) -> tuple[Callable[[Any], bool], Callable[[Any, Settings], VendorModel]]:
    """Return the functions ``accepts`` and ``make_model`` for the module of *vendor*.

    Every module that `MODEL_PROVIDERS` lists must have these two functions.
    """
    return vendor.accepts, partial(make_vendor_model, vendor)


# --- errors ---------------------------------------------------------------------------------------


class ServiceError(Exception):
    """A vendor's error, with the HTTP status, body and headers of an error of ``openai``."""

    def __init__(self, status: int, body: JsonObject, headers: Any) -> None:
        super().__init__()
        self.status_code = status
        self.body = body
        self.response = SimpleNamespace(headers=headers)


# The statuses for errors inside a stream, because the stream itself has the status 200.
_STATUS_OF_TYPE: Final = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "authentication_error": 401,
    "permission_error": 403,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "timeout_error": 504,
}
_CAUSES: Final = (
    ("invalid_api_key", re.compile(r"api_key_invalid|api key not valid")),
    (
        "context_length_exceeded",
        re.compile(r"too (?:long|large for model)|maximum context|exceeds the (?:maximum|limit)"),
    ),
    ("content_filter", re.compile(r"content[_ ](?:filter|policy)|guardrail|moderation")),
)
_MOST_WORDS: Final = 2_000


@contextmanager
def _convert_vendor_errors() -> Iterator[None]:
    """In the ``with`` block, convert a vendor's exception to a `ServiceError` or a `ModelError`.

    An exception without an HTTP status passes through unchanged.
    """
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        converted = convert_vendor_error(error)
        if converted is error:
            raise
        # The vendor's message may quote the query, so the original error does not become the cause.
        raise converted from None


def convert_vendor_error(error: Exception) -> Exception:
    """Convert *error*, raised by a vendor's client, to a `ServiceError` or a `ModelError`.

    The result is a `ModelError` if the service sent an unreadable response instead of an error. An
    error without an HTTP status is returned unchanged.
    """
    status = next(
        (
            number
            for name in ("status_code", "code")
            if isinstance(number := getattr(error, name, None), int)
        ),
        None,
    )
    if status is None:
        return error
    body: Any = next(
        (
            value
            for name in ("body", "details")
            if (value := getattr(error, name, None)) is not None
        ),
        None,
    )
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            body = {"message": body[:_MOST_WORDS]}
    if isinstance(body, Mapping) and isinstance(inner := body.get("error"), Mapping):
        body = inner
    fields: dict[str, Any] = dict(body) if isinstance(body, Mapping) else {"detail": body}
    if status < 400:
        if "type" not in fields:
            return ModelError("unparsable", "the service sent a response that cannot be read")
        status = _STATUS_OF_TYPE.get(str(fields["type"]), 500)
    words = json.dumps(fields, default=str)[:_MOST_WORDS].lower()
    code = next((code for code, pattern in _CAUSES if pattern.search(words)), None)
    if code is not None and status in (400, 403, 413, 422):
        # Vendors use these statuses for several causes. The code is read only if the status is 400,
        # so the status is changed to 400.
        status, fields["code"] = 400, code
    elif not isinstance(fields.get("code"), str):
        fields["code"] = str(fields.get("type") or fields.get("status") or "").lower()
    response = getattr(error, "response", None) or getattr(error, "raw_response", None)
    return ServiceError(status, fields, _read_headers(response, fields))


def _read_headers(response: Any, body_fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers of *response*, with lower-case names.

    Google asks for a pause in the body instead of a header. If *body_fields*, the fields of the
    body, ask for a pause, the result contains the pause as ``retry-after``.
    """
    headers = dict(getattr(response, "headers", None) or {})
    headers = {str(name).lower(): value for name, value in headers.items()}
    details = body_fields.get("details")
    for detail in details if isinstance(details, list) else ():
        pause = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(pause, str):
            headers.setdefault("retry-after", pause.removesuffix("s"))
    return headers
