"""Models of other vendors, called through the vendors' own clients.

Each vendor's module only translates: a request for a chat completion into the vendor's call, and
the vendor's answer into a completion or its chunks. `OpenAIModel` does everything else, such as
stepping down and reading streams. This package never imports a vendor's package; it uses one that
the user has imported.
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
from qtmiddleware.providers.llms.openai import OpenAIModel, read_options
from qtmiddleware.providers.llms.openai.clients import (
    Clients,
    copy_with_empty_pools,
    has_known_pools,
)
from qtmiddleware.providers.llms.openai.prices import find_prices
from qtmiddleware.providers.llms.openai.requests import Received
from qtmiddleware.providers.openai_client import (
    bound_error_bodies,
    copy_with_bounded_error_bodies,
    find_provider,
    read_host,
)
from qtmiddleware.types import Deadline

DEFAULT_MODELS: Final = frozenset({Settings().transformation_model, Settings().chat_model})
"""The models that are asked for if nobody names a model: OpenAI's."""

Chunk = Mapping[str, Any]
"""A completion, or a piece of one, in OpenAI's form."""


class Vendor(ABC):
    """Translates requests for one vendor's client, and the client's answers.

    In the methods' parameters, *resource* is the object inside the client whose methods call the
    service.
    """

    name: str
    """The vendor's name for people."""
    package: str
    """The package of its clients."""
    prices: str
    """The vendor's name in genai-prices."""
    provider: str
    """The vendor's name in OpenTelemetry, unless the host tells another, as Bedrock's does."""
    key: str
    """The environment variable of its key."""
    async_client: str = ""
    """The class of the clients that can only be awaited; ``""`` if each client serves both ways."""

    def accepts(self, candidate: Any) -> bool:
        """Return whether *candidate* is a client of this vendor, or several clients.

        Never imports the vendor's package.
        """
        members = candidate if isinstance(candidate, tuple | list) else (candidate,)
        return bool(members) and all(self._is_client(member) for member in members)

    def _is_client(self, candidate: Any) -> bool:
        kinds = type(candidate).__mro__
        if isinstance(candidate, type) or not any(
            kind.__module__.startswith(f"{self.package}.") for kind in kinds
        ):
            return False
        try:
            return hasattr(self.find_resource(candidate, is_async=False), self.calls[0])
        except AttributeError:
            return False

    calls: tuple[str, ...]
    """The resource's methods that are called.

    A resource with a method that somebody has replaced is used as it is.
    """

    def find_effort(self, model: str) -> str | None:  # noqa: ARG002
        """Return the least reasoning effort that *model* accepts; ``None`` if unknown."""
        return None

    @abstractmethod
    def find_resource(self, client: Any, *, is_async: bool) -> Any:
        """Return the object inside *client* whose methods call the service."""

    @abstractmethod
    def find_http(self, client: Any, *, is_async: bool) -> Any:
        """Return the `httpx` client inside *client*; ``None`` if it must not be used."""

    @abstractmethod
    def copy_resource(self, client: Any, http: Any, *, is_async: bool) -> Any:
        """Return a copy of the resource of *client* that uses *http* and does not retry.

        *http* is an `httpx` client.
        """

    @abstractmethod
    def find_address(self, client: Any) -> str:
        """Return the address of the service that *client* calls."""

    @abstractmethod
    def send(self, resource: Any, request: Chunk, seconds: float, *, is_async: bool) -> Any:
        """Send *request* and return the client's answer; if *is_async*, an awaitable of the answer.

        If the request asks for a stream, the answer is an iterator of events.
        """

    @abstractmethod
    def read_whole(self, answer: Any) -> Any:
        """Return *answer*, a whole answer of the client, as a completion in OpenAI's format."""

    @abstractmethod
    def make_reader(self) -> Callable[[Any], Chunk | None]:
        """Return a function that converts each event of one stream to a chunk in OpenAI's format.

        The function returns ``None`` for an event without a chunk.
        """


def split_messages(request: Chunk) -> tuple[str, str]:
    """Return the system message and the user message of *request*."""
    system, user = request["messages"]
    return system["content"], user["content"]


def find_limit(request: Chunk) -> int | None:
    """Return the token limit of *request*; ``None`` if it has no limit."""
    limit: int | None = request.get("max_tokens", request.get("max_completion_tokens"))
    return limit


def find_schema(request: Chunk) -> dict[str, Any] | None:
    """Return the JSON schema that *request* asks for; ``None`` if it asks for no schema."""
    json_schema: dict[str, Any] = request.get("response_format", {}).get("json_schema", {})
    return json_schema.get("schema")


def make_chunk(
    text: Any,
    finish: str | None,
    usage: Chunk | None,
    *,
    part: str = "delta",
    model: Any = None,
    id_: Any = None,
) -> Chunk:
    """Return a chunk with *text* in OpenAI's format, or a completion if *part* is ``message``.

    Args:
        text: The text.
        finish: Why the answer ended; ``None`` if it goes on.
        usage: The token counts, as returned by `count_tokens`.
        part: ``delta`` for a chunk, ``message`` for a completion.
        model: The name of the model that answered.
        id_: The service's id of the completion.
    """
    choices = [{part: {"content": text}, "finish_reason": finish}]
    return {"choices": choices, "usage": usage, "model": model, "id": id_}


def count_tokens(input_tokens: int | None, output_tokens: int | None) -> Chunk:
    """Return the token counts in the format of OpenAI's completions."""
    return {"prompt_tokens": input_tokens or 0, "completion_tokens": output_tokens or 0}


@dataclass
class _OwnResource:
    """A copied resource, and its HTTP client, which this package closes."""

    resource: Any
    http: Any

    def is_closed(self) -> bool:
        return bool(self.http.is_closed)

    def close(self) -> Any:
        return self.http.aclose() if hasattr(self.http, "aclose") else self.http.close()


class VendorClients(Clients):
    """Provides the resources of a user's clients, which are never closed or changed.

    A resource is the object inside a client whose methods call the service. Resources are copied,
    as in `Clients`. For a blocking call, the copy shares the client's connections and limits error
    bodies. In a forked process, and for asynchronous calls in each event loop, the copy has its own
    connections. A client is used directly if its connections cannot be found or its methods were
    replaced.
    """

    def __init__(self, client: Any, vendor: Vendor) -> None:
        super().__init__(client, None)
        self._vendor = vendor
        self._async_kind = f"{vendor.package}.{vendor.async_client}()"
        if not vendor.async_client:
            self._given_async = self._given_sync

    @property
    def host(self) -> str:
        """The server's host, without path, user or password."""
        address = self._find_address()
        return read_host(address) if address else self._vendor.name

    def _find_address(self) -> str:
        client = self._given_sync if self._given_sync is not None else self._given_async
        try:
            return self._vendor.find_address(client)
        except Exception:
            return ""

    def get_sync(self) -> Any:
        """Return the resource for a synchronous call."""
        client = self._given_sync
        http = self._find_http(client, is_async=False)
        if http is None:
            return self._vendor.find_resource(client, is_async=False)
        # In a forked process the parent's sockets must not be used.
        if os.getpid() != self._process and has_known_pools(http):
            return self._per_process.get(self._make_sync).resource
        return self._vendor.copy_resource(
            client, copy_with_bounded_error_bodies(http), is_async=False
        )

    async def get_async(self) -> Any:
        """Return the resource for an asynchronous call in the running event loop."""
        resource = await super().get_async()
        return (
            resource.resource
            if isinstance(resource, _OwnResource)
            else self._vendor.find_resource(resource, is_async=True)
        )

    def _find_http(self, client: Any, *, is_async: bool) -> Any:
        resource = self._vendor.find_resource(client, is_async=is_async)
        if any(call in vars(resource) for call in self._vendor.calls):
            return None
        try:
            http = self._vendor.find_http(client, is_async=is_async)
        except AttributeError:
            # Another version of the package may keep its HTTP client elsewhere.
            return None
        return http if hasattr(http, "event_hooks") else None

    def _can_copy(self, client: Any) -> bool:
        http = self._find_http(client, is_async=True)
        return http is not None and has_known_pools(http)

    def _copy(self, client: Any, *, is_async: bool = True) -> Any:
        http = copy_with_empty_pools(self._find_http(client, is_async=is_async))
        bound_error_bodies(http)
        return _OwnResource(self._vendor.copy_resource(client, http, is_async=is_async), http)

    def _make_sync(self) -> Any:
        return self._copy(self._given_sync, is_async=False)


class VendorModel(OpenAIModel):
    """Calls *model* of *vendor* through a *client* of the vendor's package.

    The *options*, requests, deadlines, stepping down and token counts are as in `OpenAIModel`. A
    whole answer is read by the vendor's client. If a server sends the answer very slowly, a daemon
    thread keeps reading, but the caller waits no longer than the deadline.
    """

    def __init__(self, vendor: Vendor, model: str, *, client: Any, **options: Any) -> None:
        self._vendor = vendor
        self._price_list = vendor.prices
        self._find_effort = vendor.find_effort
        self._advice = {"key": vendor.key, "address": "the client's address"}
        super().__init__(model, client=VendorClients(client, vendor), **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, host={self._clients.host!r})"

    @property
    def provider(self) -> str:
        """The model's provider, as OpenTelemetry names it."""
        return find_provider(self._clients.host, self._vendor.provider)

    def warm_up(self) -> None:
        """Load the modules and prices that a request needs, without sending anything."""
        find_prices(self._model, self._price_list)
        if self._clients.can_block:
            self._clients.get_sync()

    def _open(self, request: dict[str, Any], deadline: Deadline, stack: ExitStack) -> Received:
        seconds = find_request_timeout(deadline)
        with _convert_errors():
            answer = self._vendor.send(self._clients.get_sync(), request, seconds, is_async=False)
            if "stream" not in request:
                return iter((self._vendor.read_whole(answer),)), 0
            if hasattr(answer, "close"):
                stack.callback(answer.close)
            events = iter(answer)
            # Some clients send the request only when the first event is read.
            first_event = next(events, None)
        return self._read_events(first_event, events), 0

    def _read_events(self, event: Any, events: Iterator[Any]) -> Iterator[Chunk]:
        read = self._vendor.make_reader()
        with _convert_errors():
            while event is not None:
                if (chunk := read(event)) is not None:
                    yield chunk
                event = next(events, None)

    async def _aopen(
        self, request: dict[str, Any], deadline: Deadline, stack: AsyncExitStack
    ) -> Received:
        resource = await self._clients.get_async()
        seconds = find_request_timeout(deadline)
        with _convert_errors():
            async with asyncio.timeout(seconds):
                answer = await self._vendor.send(resource, request, seconds, is_async=True)
                if "stream" not in request:
                    return _yield_once(self._vendor.read_whole(answer)), 0
                close = getattr(answer, "close", None) or getattr(answer, "aclose", None)
                if close is not None:
                    stack.push_async_callback(close)
                events = aiter(answer)
                first_event = await anext(events, None)
        return self._aread_events(first_event, events), 0

    async def _aread_events(self, event: Any, events: AsyncIterator[Any]) -> AsyncIterator[Chunk]:
        read = self._vendor.make_reader()
        with _convert_errors():
            while event is not None:
                if (chunk := read(event)) is not None:
                    yield chunk
                event = await anext(events, None)


async def _yield_once(answer: Any) -> AsyncIterator[Any]:
    yield answer


def make_vendor_model(vendor: Vendor, client: Any, settings: Settings) -> VendorModel:
    """Return a model that calls the model named in *settings* through *client*.

    OpenAI's default model is never requested from another vendor. If only one of
    ``transformationModel`` and ``chatModel`` is changed, the changed name is used for both. If
    neither is changed, raises `ConfigError`.
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
    return VendorModel(vendor, model, client=client, **read_options(settings))


def make_provider_functions(
    vendor: Vendor,
) -> tuple[Callable[[Any], bool], Callable[[Any, Settings], VendorModel]]:
    """Return the functions ``accepts`` and ``make_model`` for the module of *vendor*.

    Every module in `MODEL_PROVIDERS` must define both.
    """
    return vendor.accepts, partial(make_vendor_model, vendor)


# --- errors ---------------------------------------------------------------------------------------


class ServiceError(Exception):
    """A vendor's error with its HTTP status, body and headers, like the errors of ``openai``."""

    def __init__(self, status: int, body: Chunk, headers: Any) -> None:
        super().__init__()
        self.status_code = status
        self.body = body
        self.response = SimpleNamespace(headers=headers)


# The status for errors that come inside a stream, whose own status is 200.
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
def _convert_errors() -> Iterator[None]:
    """Convert a vendor's exception into a `ServiceError` or `ModelError`.

    An exception without an HTTP status passes through unchanged.
    """
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        converted = read_vendor_error(error)
        if converted is error:
            raise
        raise converted from None


def read_vendor_error(error: Exception) -> Exception:
    """Return *error* as a `ServiceError` or `ModelError`; unchanged if it has no HTTP status."""
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
        # These causes have the same status, so the code must tell them apart. Of an error with
        # status 400 the code is read.
        status, fields["code"] = 400, code
    elif not isinstance(fields.get("code"), str):
        fields["code"] = str(fields.get("type") or fields.get("status") or "").lower()
    response = getattr(error, "response", None) or getattr(error, "raw_response", None)
    return ServiceError(status, fields, _read_headers(response, fields))


def _read_headers(response: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers of *response*, with their names in lower case.

    If the body *fields* contain a pause, as Google's do, the pause is added as ``retry-after``.
    """
    headers = dict(getattr(response, "headers", None) or {})
    headers = {str(name).lower(): value for name, value in headers.items()}
    details = fields.get("details")
    for detail in details if isinstance(details, list) else ():
        pause = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(pause, str):
            headers.setdefault("retry-after", pause.removesuffix("s"))
    return headers
