"""Models of other vendors, asked through the vendors' own clients.

A vendor's file only translates: a request, which has the form of a chat completion, into the
vendor's call, and the answer into completions or chunks of completions. `OpenAIModel` does
everything else, from stepping down to reading streams. A vendor's package is never loaded here; it
is used if it is loaded already.
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
    """Translates to and from the calls of one vendor's client.

    The *resource* in the methods' parameters is the client's object that has the calls.
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
        """Return whether *given* is a client of this vendor, or several; never load the package."""
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
        """Return the least reasoning effort that *model* accepts; ``None`` if none is known."""
        return None

    @abstractmethod
    def find_resource(self, client: Any, *, is_async: bool) -> Any:
        """Return the resource of *client*."""

    @abstractmethod
    def find_http(self, client: Any, *, is_async: bool) -> Any:
        """Return the `httpx` client inside *client*; ``None`` if it must not be touched."""

    @abstractmethod
    def copy_resource(self, client: Any, http: Any, *, is_async: bool) -> Any:
        """Return a copy of the resource of *client* that uses *http* and does not retry."""

    @abstractmethod
    def find_address(self, client: Any) -> str:
        """Return the address that *client* calls."""

    @abstractmethod
    def send(self, resource: Any, request: Chunk, seconds: float, *, is_async: bool) -> Any:
        """Send *request* and return the client's answer, or an awaitable of it if *is_async*.

        If the request asks for a stream, the answer is an iterator of events.
        """

    @abstractmethod
    def read_whole(self, answer: Any) -> Any:
        """Return *answer* as a completion."""

    @abstractmethod
    def make_reader(self) -> Callable[[Any], Chunk | None]:
        """Return a function from each event of one stream to a chunk."""


def split_messages(request: Chunk) -> tuple[str, str]:
    """Return the instructions and the question of *request*."""
    system, user = request["messages"]
    return system["content"], user["content"]


def find_limit(request: Chunk) -> int | None:
    """Return the most tokens that *request* asks for."""
    limit: int | None = request.get("max_tokens", request.get("max_completion_tokens"))
    return limit


def find_schema(request: Chunk) -> dict[str, Any] | None:
    """Return the JSON schema that *request* asks for."""
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
    """Return a chunk with *text*, or with *part* ``message`` a completion, in OpenAI's form.

    Args:
        text: The text.
        finish: Why the answer ended, or ``None``.
        usage: The tokens, as `count_tokens` returns them.
        part: ``delta`` for a chunk, ``message`` for a completion.
        model: The model that answered.
        id_: The service's id of the completion.
    """
    choices = [{part: {"content": text}, "finish_reason": finish}]
    return {"choices": choices, "usage": usage, "model": model, "id": id_}


def count_tokens(read: int | None, written: int | None) -> Chunk:
    """Return the tokens that were *read* and *written* as a completion counts them."""
    return {"prompt_tokens": read or 0, "completion_tokens": written or 0}


@dataclass
class _OwnResource:
    """A resource that was made here, with its connections."""

    resource: Any
    http: Any

    def is_closed(self) -> bool:
        return bool(self.http.is_closed)

    def close(self) -> Any:
        return self.http.aclose() if hasattr(self.http, "aclose") else self.http.close()


class VendorClients(Clients):
    """The resources of a user's clients, which are neither closed nor changed.

    As with `Clients`, they are copied. For blocking calls, each call gets a copy that shares the
    client's connections and limits error bodies. In a forked process, and for asynchronous calls in
    each event loop, the copy has connections of its own. Clients are used as they are if their
    connections cannot be found, or if somebody has replaced their calls.
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
        """Return the resource for a call in the running event loop."""
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
    """Asks *model* of *vendor* through a *client* of the vendor's package.

    *options*, requests, deadlines, stepping down and counting are as in `OpenAIModel`. A whole
    answer is read by the vendor's client: if a server sends it very slowly, a daemon thread keeps
    reading, and nobody waits for it after the deadline.
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
        """Load what a request needs, without sending anything."""
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
    """Return the model that *settings* name, asked through *client*.

    OpenAI's default model is never sent to another vendor: if one of ``transformationModel`` and
    ``chatModel`` is the default, the other serves for both. Raises `ConfigError` if both are.
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


def provide(vendor: Vendor) -> tuple[Callable[[Any], bool], Callable[[Any, Settings], VendorModel]]:
    """Return ``accepts`` and ``make_model`` for *vendor*, as `MODEL_PROVIDERS` needs them."""
    return vendor.accepts, partial(make_vendor_model, vendor)


# --- errors ---------------------------------------------------------------------------------------


class ServiceError(Exception):
    """A service's refusal in the form in which errors are read: status, body and headers."""

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
    """Raise a vendor's exception as a `ServiceError` or `ModelError` if the service answered."""
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
    """Return the headers of *response*, with the pause that Google names in the body."""
    headers = dict(getattr(response, "headers", None) or {})
    headers = {str(name).lower(): value for name, value in headers.items()}
    details = fields.get("details")
    for detail in details if isinstance(details, list) else ():
        pause = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(pause, str):
            headers.setdefault("retry-after", pause.removesuffix("s"))
    return headers
