"""Call the language models of OpenAI and of other services with the same chat completions API.

If a service rejects a response format or an option, it gets a simpler request. The process
remembers per address and model what was rejected, so that each is rejected only once.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError, explain_client_errors
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.errors import (
    convert_client_error,
    read_body_field,
    read_status,
    require_seconds_left,
)
from qtmiddleware.providers.llms import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    find_address,
    read_api_key,
    replies,
)
from qtmiddleware.retrieval.fields import read_field
from qtmiddleware.runtime.concurrency import (
    await_in_background_loop,
    drive,
    run_in_background_loop,
)
from qtmiddleware.runtime.forking import MadeOnce
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

# The number of tokens added to an answer's limit if the model reasons first. Providers count the
# reasoning as output tokens.
THINKING_TOKENS: Final = 10_000
# The maximum number of seconds to wait for an answer, or for the next piece of a stream.
LONGEST_WAIT: Final = 600.0

_FORMATS: Final = ("json_schema", "json_object", "text")
_ABOUT_FORMAT: Final = re.compile(r"response.?format|json|schema|structured|guided_|grammar")
# OpenAI's reasoning models, and the least effort that each accepts; the first match counts.
_LEAST_EFFORTS: Final = {
    re.compile(r"gpt-\d[\d.]*-astra\b|o\d\b"): "low",
    re.compile(r"gpt-5(?:-mini|-nano)?(?:-\d{4}-\d\d-\d\d)?$"): "minimal",
    re.compile(r"gpt-(?:[5-9]|\d\d)\b"): "none",
}

_log = get_logger("qtmiddleware.llms")
_NEEDED: Final = ("model", "messages", "stream", "response_format")
# By address and model: the response formats and options that the service rejects.
LEARNED: Final[dict[tuple[str, str], frozenset[str]]] = {}

Piece = str | Reply
T = TypeVar("T")


class OpenAIModel:
    """Calls a language model through the ``openai`` client.

    - A rejected JSON schema becomes ``json_object``, and then plain text. Another option that the
      service rejects by its name is omitted.
    - With *reasoning_effort* ``auto``, OpenAI's reasoning models get the least effort they accept.
    - Every request times out at the deadline, or after the ``timeout`` of a user's client. Such a
      client retries as its ``max_retries`` says; clients made here do not retry.
    - Only a user's blocking client is called in a blocking caller's thread. Any other client is
      async, and such a caller waits for the background loop.

    *client* is an ``openai`` client; by default, clients are made on first use with the key from
    ``OPENAI_API_KEY``.
    """

    provider = "openai"

    def __init__(
        self, model: str, options: LlmSettings | None = None, *, client: Any = None
    ) -> None:
        self.name = model
        self._options = options or LlmSettings()
        self._clients = Clients(client, self._options.base_url)
        self._service = f"{model} at {read_host(self._clients.address)}"
        self.can_async = not self._clients.is_blocking
        self.thinking_tokens = count_thinking_tokens(model, self._options)
        self._run: Callable[[Any], Any] = drive if not self.can_async else run_in_background_loop
        self.prices = replies.Prices(model, self._options.input_price, self._options.output_price)

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, host={read_host(self._clients.address)!r})"

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        return self._run(self._complete(prompt, deadline))  # type: ignore[no-any-return]

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* as `complete` does, without blocking the event loop."""
        return await self._clients.wait(self._complete(prompt, deadline))

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[Piece, None, None]:
        """Yield the pieces of the reply to *prompt* as they arrive, then the whole `Reply`.

        Closing the generator closes the connection. Raises `ModelError` on failure.
        """
        pieces = self._stream(prompt, deadline)
        try:
            while (piece := self._run(_read_next(pieces))) is not None:
                yield piece
        except GeneratorExit:
            self._run(pieces.aclose())
            raise

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncGenerator[Piece, None]:
        """Yield pieces and the `Reply` as `stream` does, without blocking the event loop."""
        pieces, wait = self._stream(prompt, deadline), self._clients.wait
        try:
            while (piece := await wait(_read_next(pieces))) is not None:
                yield piece
        except GeneratorExit:
            # An error or a cancellation while a piece is awaited ends the stream itself.
            await wait(pieces.aclose())
            raise

    def warm_up(self) -> None:
        """Load the modules, the prices and the client that the first request needs."""
        replies.find_prices(self.name)
        self._clients.get()

    def close(self) -> None:
        """Close the clients made here. The next call makes new clients."""
        self._clients.close()

    # Over a blocking client, nothing that the next methods await ever suspends.

    async def _complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        answer, count = await self._send(prompt, deadline)
        return replies.add_cost(replies.read_completion(answer), self.prices, count)

    async def _stream(self, prompt: Prompt, deadline: Deadline) -> AsyncGenerator[Piece, None]:
        reader = _StreamReader()
        answer, count = await self._send(prompt, deadline, streams=True)
        try:
            async for chunk in _iterate(answer):
                if text := reader.read(chunk):
                    yield text
                require_seconds_left(deadline)
        except Exception as error:
            # If the text had ended before the error, at most the cost is missing.
            if not reader.end:
                raise convert_client_error(error, self._service) from None
        finally:
            if hasattr(answer, "close") and inspect.isawaitable(closing := answer.close()):
                await closing
        yield replies.add_cost(reader.make_reply(), self.prices, count)

    async def _send(
        self, prompt: Prompt, deadline: Deadline, *, streams: bool = False
    ) -> tuple[Any, int]:
        """Send the request, and simpler ones until the service accepts one.

        Returns the answer and the number of requests. Raises `ModelError`.
        """
        client, address = self._clients.get(), self._clients.address
        # The user may have given the client less time: a number, or a time for each part of a call.
        own = getattr(client, "timeout", None)
        own = getattr(own, "read", own)
        longest = min(own, LONGEST_WAIT) if isinstance(own, int | float) else LONGEST_WAIT
        rejected = LEARNED.get((address, self.name), frozenset())
        count = 0
        while True:
            shape = next(name for name in _FORMATS if name not in rejected)
            host = read_host(address)
            request = build_request(self.name, self._options, prompt, host=host, shape=shape)
            if streams:
                request |= {"stream": True, "stream_options": {"include_usage": True}}
            for name in rejected:
                request.pop(name, None)
            count += 1
            seconds = min(require_seconds_left(deadline), LONGEST_WAIT)
            try:
                timeout = min(seconds, longest)
                answer = client.chat.completions.create(**request, timeout=timeout)
                if inspect.isawaitable(answer):
                    # The client's own retries end with this time too.
                    async with asyncio.timeout(seconds):
                        answer = await answer
            except Exception as error:
                option = _find_rejected(error, request)
                if not option:
                    raise convert_client_error(error, self._service) from None
                rejected |= {option}
                _log.info("%s rejected %s", self.name, option, event="option_rejected")
            else:
                LEARNED[address, self.name] = rejected
                return answer, count


async def _iterate(answer: Any) -> AsyncGenerator[Any, None]:
    if hasattr(answer, "__aiter__"):
        async for chunk in answer:
            yield chunk
    else:
        for chunk in answer:
            yield chunk


async def _read_next(pieces: AsyncGenerator[Piece, None]) -> Piece | None:
    # A generator belongs to the loop that asks for its first piece: the client's, not the caller's.
    return await anext(pieces, None)


class _StreamReader:
    def __init__(self) -> None:
        # Why the model stopped; empty until the text is complete.
        self.end = ""
        self._text = ""
        self._fields: dict[str, Any] = {}
        self._has_begun = False

    def read(self, chunk: Any) -> str:
        """Return the text in *chunk*."""
        replies.raise_if_gateway_error(chunk)
        # The counts come last, in a chunk without choices. Some services name the model only once.
        for name in ("model", "id", "usage"):
            if value := read_field(chunk, name):
                self._fields[name] = value
        choices = read_field(chunk, "choices")
        self._has_begun |= isinstance(choices, list)
        # Only the first choice is the answer.
        if not choices or read_field(choices[0], "index"):
            return ""
        self.end = self.end or read_field(choices[0], "finish_reason") or ""
        delta = read_field(choices[0], "delta")
        replies.raise_if_refused(delta, self.end)
        text = replace_surrogates(replies.join_texts(read_field(delta, "content")) or "")
        self._text += text
        return text

    def make_reply(self) -> Reply:
        """Return the reply; raise `ModelError` if there is no text or the stream was cut off."""
        if self._has_begun and not self.end:
            raise ModelError("unavailable", "the model's answer was cut off")
        choice = {"message": {"content": self._text}, "finish_reason": self.end}
        choices = [choice] if self._has_begun else []
        return replies.read_completion({**self._fields, "choices": choices})


def build_request(
    model: str, options: LlmSettings, prompt: Prompt, *, host: str, shape: str = _FORMATS[0]
) -> dict[str, Any]:
    """Return the arguments for ``chat.completions.create`` with the response format *shape*."""
    least, thinking_tokens = _find_least_effort(model), count_thinking_tokens(model, options)
    effort = least if options.reasoning_effort == "auto" else options.reasoning_effort
    request: dict[str, Any] = {"model": model, "reasoning_effort": effort}
    # OpenAI's reasoning models accept no temperature while they think.
    if least is None or not thinking_tokens:
        request["temperature"] = options.temperatures.get(prompt.mode, options.temperature)
    if options.max_tokens:
        # Other services often ignore OpenAI's new name for the limit.
        is_openai = least is not None or f".{host}".endswith(".api.openai.com")
        limit = "max_completion_tokens" if is_openai else "max_tokens"
        request[limit] = options.max_tokens + thinking_tokens
    request |= _build_format(prompt, shape if prompt.fields else "text")
    return {name: value for name, value in request.items() if value is not None}


def _find_least_effort(model: str) -> str | None:
    """Return the least effort of OpenAI's reasoning *model*; ``None`` for other models."""
    # A provider's name may stand before the model's, as in ``openai/gpt-6-luna``.
    name = model.lower().rpartition("/")[2]
    return next((least for pattern, least in _LEAST_EFFORTS.items() if pattern.match(name)), None)


def count_thinking_tokens(model: str, options: LlmSettings) -> int:
    """Return how many tokens *model* may use for reasoning, beside those of its reply."""
    least = _find_least_effort(model)
    effort = least if options.reasoning_effort == "auto" else options.reasoning_effort
    # OpenAI's reasoning models think unless told not to.
    thinks = least is not None if effort is None else effort != "none"
    return THINKING_TOKENS if thinks else 0


def _find_rejected(error: Exception, request: Mapping[str, Any]) -> str:
    """Return the option or response format that the service rejected; ``""`` if unknown.

    If an error with status 400 or 422 says nothing of the cause, the format is a guess, because
    services reject it most often.
    """
    status = read_status(error)
    # Some local servers report a rejected response format as a server error.
    if status not in (400, 404, 415, 422, 500, 501):
        return ""
    parameter = read_body_field(error, "param")
    words = (parameter or str(getattr(error, "body", ""))[:2_000]).lower()
    options = [name for name in request if name not in _NEEDED]
    if parameter in options:
        return parameter
    shape: str = request.get("response_format", {}).get("type", "")
    is_refused = status in (400, 422)
    is_guess = is_refused and not (parameter or read_body_field(error, "code"))
    if shape and (is_guess or _ABOUT_FORMAT.search(words)):
        return shape
    # Some services name the option only in their message.
    return next((name for name in options if is_refused and name in words), "")


def _build_format(prompt: Prompt, shape: str) -> dict[str, Any]:
    system = prompt.system
    if prompt.fields and shape != "json_schema" and "json" not in system.lower():
        # Services refuse JSON mode if no message contains the word "JSON", and without a schema
        # nothing else names the keys.
        keys = ", ".join(field.name for field in prompt.fields)
        system += f"\n\nAnswer with one JSON object and nothing else. Its keys: {keys}."
    messages = [
        {"role": "system", "content": system.lstrip()},
        {"role": "user", "content": prompt.user},
    ]
    if shape == "text":
        return {"messages": messages}
    response_format: dict[str, Any] = {"type": shape}
    if shape == "json_schema":
        schema = {
            "type": "object",
            "properties": {field.name: _build_schema(field) for field in prompt.fields},
            "required": [field.name for field in prompt.fields],
            "additionalProperties": False,
        }
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", prompt.mode)[:64].strip("_") or "reply"
        response_format["json_schema"] = {
            "name": name,
            "strict": True,
            "schema": schema,
        }
    return {"messages": messages, "response_format": response_format}


def _build_schema(field: ReplyField) -> dict[str, Any]:
    if field.shape != "list":
        return {"type": "string", "description": field.description}
    description = field.description
    if field.max_items:
        # Some services reject ``maxItems``, so the description says how many.
        least = "" if field.min_items == field.max_items else f"{field.min_items} to "
        description += f" ({least}{field.max_items} items)"
    return {"type": "array", "items": {"type": "string"}, "description": description}


# --- clients -------------------------------------------------------------------------------------


def read_host(address: str) -> str:
    """Return the host of *address*, without path, query, user or password."""
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    return host or "an unknown host"


class Clients:
    """The client of one service: the user's own, or one that is made on first use.

    An async client's connections belong to the event loop that opened them. So an async client made
    here and a copy of the user's work only in the background loop, for callers in all loops. The
    user's client is never closed.

    Attributes:
        is_blocking: Whether the client is a blocking one of the user's.
    """

    def __init__(self, client: Any, base_url: str | None) -> None:
        self._user_client = client
        self._base_url = base_url
        # A check by class would import the SDK, and would miss wrappers and test doubles.
        names = [class_.__name__ for class_ in type(client).__mro__]
        is_async = any(name.startswith("Async") for name in names)
        self.is_blocking = client is not None and not is_async
        self._made = MadeOnce[Any]()

    @property
    def address(self) -> str:
        """The server's base URL; ``""`` if the user's client does not show it."""
        address: Any = getattr(self._user_client, "base_url", "")
        if self._user_client is None:
            address = find_address(self._base_url) or DEFAULT_ADDRESS
        return str(address).rstrip("/")

    def get(self) -> Any:
        """Return the client for a call; raise `ModelError` if there is no API key."""
        return self._user_client if self._is_fixed else self._made.get(self._make_client)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Return the result of *awaitable*, which calls the client, in the client's loop."""
        return await (awaitable if self._is_fixed else await_in_background_loop(awaitable))

    @property
    def _is_fixed(self) -> bool:
        client = self._user_client
        return client is not None and (self.is_blocking or not _can_copy(client))

    def close(self) -> None:
        """Close the client made here. The next call makes a new client."""
        if (closing := self._made.close()) is not None:
            run_in_background_loop(closing)

    def _make_client(self) -> Any:
        address = find_address(self._base_url)
        if self._user_client is None and not (address or read_api_key()):
            raise ModelError(
                "unauthorized",
                f"the key is missing: set {KEY_VARIABLE}, or llm.baseUrl for a server without keys",
            )
        import openai

        with explain_client_errors(partial(ModelError, "unavailable")):
            if self._user_client is not None:
                connections = openai.DefaultAsyncHttpxClient()
                return self._user_client.with_options(http_client=connections)
            # A retry would hide what a busy service says, and the breaker waits for it anyway.
            options = build_client_options(openai.DefaultAsyncHttpxClient, address)
            client = openai.AsyncOpenAI(max_retries=0, **options)
        # The SDK loads these when they are first used.
        _ = client.chat.completions, client.default_headers
        return client


def build_client_options(connections: Any, address: str | None) -> dict[str, Any]:
    """Return the options of a client made here, with *connections* of the SDK's class for them."""
    return {
        # A user's own server may need no key, but the SDK's client requires one.
        "api_key": read_api_key() or "none",
        "base_url": address,
        # A redirect could send texts to another host.
        "http_client": connections(follow_redirects=False),
    }


def _can_copy(client: Any) -> bool:
    """Return whether *client* is an SDK client with the SDK's own connections.

    Only the user knows the proxies and certificates of an HTTP client that the user passed.
    """
    # `type`, not `isinstance`: a double or a proxy may pretend to be an instance of the class.
    if type(client).__module__.partition(".")[0] != "openai":
        return False
    # Tracing libraries replace the method `create` of one client. A copy would not be traced.
    is_replaced = "create" in vars(client.chat.completions)
    # The SDK then uses a class of its own. Without this name, the client is used as it is.
    http_class = type(getattr(client, "_client", None))
    return not is_replaced and http_class.__name__.endswith("HttpxClientWrapper")
