"""Models of other vendors, asked through the vendors' own clients.

A vendor's file translates alone: a request, which has the form of a chat completion, into the
vendor's call, and what comes back into completions or chunks of one. All else, from the stepping
down to the reading of streams, is what `OpenAIModel` does. No vendor's package is loaded here that
is not loaded already.
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
"""What is asked for where nobody names a model: OpenAI's."""

Chunk = Mapping[str, Any]
"""A completion, or a piece of one, in OpenAI's form."""


class Vendor(ABC):
    """How one vendor's client is called; *resource* is the object of the client that has the calls."""

    name: str
    """The vendor as people call it."""
    package: str
    """The package of its clients."""
    prices: str
    """What genai-prices calls it."""
    provider: str
    """What OpenTelemetry's conventions call it where the host does not tell: Bedrock, Vertex and others do."""
    key: str
    """The environment variable of its key."""
    async_client: str = ""
    """The class of the clients that can only be awaited; ``""`` where each serves both ways."""

    def accepts(self, given: Any) -> bool:
        """Whether *given* is a client of this vendor, or several; never loads its package."""
        members = given if isinstance(given, tuple | list) else (given,)
        return bool(members) and all(self._is_client(member) for member in members)

    def _is_client(self, given: Any) -> bool:
        kinds = type(given).__mro__
        if isinstance(given, type) or not any(
            it.__module__.startswith(f"{self.package}.") for it in kinds
        ):
            return False
        try:
            return hasattr(self.find_resource(given, is_async=False), self.calls[0])
        except AttributeError:
            return False

    calls: tuple[str, ...]
    """The methods of a resource that are called; one that somebody has replaced is called as it is."""

    def find_effort(self, model: str) -> str | None:  # noqa: ARG002
        """The least effort that *model* takes, ``None`` where it is not known to reason."""
        return None

    @abstractmethod
    def find_resource(self, client: Any, *, is_async: bool) -> Any:
        """The resource of *client*."""

    @abstractmethod
    def find_http(self, client: Any, *, is_async: bool) -> Any:
        """The client of `httpx` below *client*; ``None`` where it is not to be touched."""

    @abstractmethod
    def copy_resource(self, client: Any, http: Any, *, is_async: bool) -> Any:
        """The resource of *client*, which stays as it is, with *http* below and without retries."""

    @abstractmethod
    def find_address(self, client: Any) -> str:
        """The address that *client* speaks to."""

    @abstractmethod
    def send(self, resource: Any, request: Chunk, seconds: float, *, is_async: bool) -> Any:
        """What the client answers to *request*, to be awaited where it *is_async*; pieces where that asks to stream."""

    @abstractmethod
    def read_whole(self, answer: Any) -> Any:
        """*answer* as a completion."""

    @abstractmethod
    def make_reader(self) -> Callable[[Any], Chunk | None]:
        """A function from each event of one stream to a chunk."""


def split_messages(request: Chunk) -> tuple[str, str]:
    """The instructions and the question of *request*."""
    system, user = request["messages"]
    return system["content"], user["content"]


def find_limit(request: Chunk) -> int | None:
    """The most tokens that *request* asks for."""
    limit: int | None = request.get("max_tokens", request.get("max_completion_tokens"))
    return limit


def find_schema(request: Chunk) -> dict[str, Any] | None:
    """The JSON schema that *request* asks for."""
    asked: dict[str, Any] = request.get("response_format", {}).get("json_schema", {})
    return asked.get("schema")


def make_chunk(
    text: Any,
    finish: str | None,
    usage: Chunk | None,
    *,
    part: str = "delta",
    model: Any = None,
    id_: Any = None,
) -> Chunk:
    """A chunk, or with *part* ``message`` a completion, that says *text*, by *model* under the service's *id_*."""
    choices = [{part: {"content": text}, "finish_reason": finish}]
    return {"choices": choices, "usage": usage, "model": model, "id": id_}


def count_tokens(read: int | None, written: int | None) -> Chunk:
    """What a completion says of its tokens."""
    return {"prompt_tokens": read or 0, "completion_tokens": written or 0}


@dataclass
class _OwnResource:
    """A resource of ours with its connections."""

    resource: Any
    http: Any

    def is_closed(self) -> bool:
        return bool(self.http.is_closed)

    def close(self) -> Any:
        return self.http.aclose() if hasattr(self.http, "aclose") else self.http.close()


class VendorClients(Clients):
    """The resources of the clients a user gave, which are neither closed nor changed.

    As `Clients` says, they are copied: blocking ones for each call, sharing their connections, with
    an end to the bodies of errors; with connections of their own in a forked process and,
    asynchronous ones, in each event loop. Clients whose connections cannot be told from the
    outside, or whose calls somebody has replaced, are used as they are.
    """

    def __init__(self, given: Any, vendor: Vendor) -> None:
        super().__init__(given, None)
        self._vendor = vendor
        self._async_kind = f"{vendor.package}.{vendor.async_client}()"
        if not vendor.async_client:
            self._given_async = self._given_sync

    @property
    def host(self) -> str:
        """The host that is spoken to, without path, user or password."""
        address = self._find_address()
        return read_host(address) if address else self._vendor.name

    def _find_address(self) -> str:
        given = self._given_sync if self._given_sync is not None else self._given_async
        try:
            return self._vendor.find_address(given)
        except Exception:
            return ""

    def sync(self) -> Any:
        """The resource for a synchronous call."""
        given = self._given_sync
        http = self._find_http(given, is_async=False)
        if http is None:
            return self._vendor.find_resource(given, is_async=False)
        if os.getpid() != self._process and has_known_pools(http):
            return self._per_process.get(self._make_sync).resource
        return self._vendor.copy_resource(
            given, copy_with_bounded_error_bodies(http), is_async=False
        )

    async def asynchronous(self) -> Any:
        """The resource for a call in the running event loop."""
        held = await super().asynchronous()
        return (
            held.resource
            if isinstance(held, _OwnResource)
            else self._vendor.find_resource(held, is_async=True)
        )

    def _find_http(self, given: Any, *, is_async: bool) -> Any:
        resource = self._vendor.find_resource(given, is_async=is_async)
        if any(call in vars(resource) for call in self._vendor.calls):
            return None
        try:
            http = self._vendor.find_http(given, is_async=is_async)
        except AttributeError:
            # Another version of the package keeps it elsewhere.
            return None
        return http if hasattr(http, "event_hooks") else None

    def _can_copy(self, given: Any) -> bool:
        http = self._find_http(given, is_async=True)
        return http is not None and has_known_pools(http)

    def _copy(self, given: Any, *, is_async: bool = True) -> Any:
        http = copy_with_empty_pools(self._find_http(given, is_async=is_async))
        bound_error_bodies(http)
        return _OwnResource(self._vendor.copy_resource(given, http, is_async=is_async), http)

    def _make_sync(self) -> Any:
        return self._copy(self._given_sync, is_async=False)


class VendorModel(OpenAIModel):
    """Asks *model* of *vendor* through the *client* of its package; *options* are those of `OpenAIModel`.

    Requests, deadlines, the stepping down and what is counted are as there. The reader of a whole
    answer is the vendor's: a server that trickles one is left to a thread of ours, which nobody
    waits for after the deadline.
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
        """Who serves the model, as OpenTelemetry's conventions call them."""
        return find_provider(self._clients.host, self._vendor.provider)

    def warm_up(self) -> None:
        """Load what a request takes, and send nothing."""
        find_prices(self._model, self._price_list)
        if self._clients.can_block:
            self._clients.sync()

    def _open(self, request: dict[str, Any], deadline: Deadline, stack: ExitStack) -> Received:
        seconds = find_request_timeout(deadline)
        with _convert_errors():
            answer = self._vendor.send(self._clients.sync(), request, seconds, is_async=False)
            if "stream" not in request:
                return iter((self._vendor.read_whole(answer),)), 0
            if hasattr(answer, "close"):
                stack.callback(answer.close)
            events = iter(answer)
            # Some clients send the request when the first is asked for.
            first = next(events, None)
        return self._read_events(first, events), 0

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
        resource = await self._clients.asynchronous()
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
                first = await anext(events, None)
        return self._aread_events(first, events), 0

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
    """The model that *settings* name, asked through *client*.

    OpenAI's default is not sent to another vendor: where one of ``transformationModel`` and
    ``chatModel`` is left at it, the other one serves for both. Raises `ConfigError` where both are.
    """
    named = (settings.transformation_model, settings.chat_model)
    model = next((it for it in named if it not in DEFAULT_MODELS), None)
    if model is None:
        raise ConfigError(
            f"{named[0]} is not a model of {vendor.name}; with a {vendor.name} client, set"
            " transformationModel (and chatModel, if another model answers)",
            path="transformationModel",
            value=named[0],
            allowed=f"the name of a model of {vendor.name}",
        )
    return VendorModel(vendor, model, client=client, **read_options(settings))


def provide(vendor: Vendor) -> tuple[Callable[[Any], bool], Callable[[Any, Settings], VendorModel]]:
    """The two functions of a row of `MODEL_PROVIDERS`, for *vendor*: ``accepts`` and ``make_model``."""
    return vendor.accepts, partial(make_vendor_model, vendor)


# --- errors ---------------------------------------------------------------------------------------


class ServiceError(Exception):
    """What a service refused with, in the one form in which errors are read: status, body and headers."""

    def __init__(self, status: int, body: Chunk, headers: Any) -> None:
        super().__init__()
        self.status_code = status
        self.body = body
        self.response = SimpleNamespace(headers=headers)


# Errors that come in a stream, whose status says that all is well.
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
    """Raise what a vendor's client raises as a `ServiceError` or `ModelError`, where it says what came back."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        known = read_vendor_error(error)
        if known is error:
            raise
        raise known from None


def read_vendor_error(error: Exception) -> Exception:
    """*error* of a vendor's client as a `ServiceError`; itself where it has no HTTP status."""
    status = next(
        (
            it
            for name in ("status_code", "code")
            if isinstance(it := getattr(error, name, None), int)
        ),
        None,
    )
    if status is None:
        return error
    body: Any = next(
        (it for name in ("body", "details") if (it := getattr(error, name, None)) is not None), None
    )
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            body = {"message": body[:_MOST_WORDS]}
    if isinstance(body, Mapping) and isinstance(inner := body.get("error"), Mapping):
        body = inner
    said: dict[str, Any] = dict(body) if isinstance(body, Mapping) else {"detail": body}
    if status < 400:
        if "type" not in said:
            return ModelError("unparsable", "the service sent a response that cannot be read")
        status = _STATUS_OF_TYPE.get(str(said["type"]), 500)
    words = json.dumps(said, default=str)[:_MOST_WORDS].lower()
    code = next((code for code, pattern in _CAUSES if pattern.search(words)), None)
    if code is not None and status in (400, 403, 413, 422):
        # So that the cause is read, not the status, by which all of these look alike.
        status, said["code"] = 400, code
    elif not isinstance(said.get("code"), str):
        said["code"] = str(said.get("type") or said.get("status") or "").lower()
    response = getattr(error, "response", None) or getattr(error, "raw_response", None)
    return ServiceError(status, said, _read_headers(response, said))


def _read_headers(response: Any, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """The headers of *response*, with the pause that Google names in the body."""
    headers = dict(getattr(response, "headers", None) or {})
    headers = {str(name).lower(): value for name, value in headers.items()}
    details = said.get("details")
    for it in details if isinstance(details, list) else ():
        pause = it.get("retryDelay") if isinstance(it, Mapping) else None
        if isinstance(pause, str):
            headers.setdefault("retry-after", pause.removesuffix("s"))
    return headers
