"""Call the language models of OpenAI and of other services with the same chat completions API."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError, explain_client_errors
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.llms.calls import complete_in_background, require_seconds_left
from qtmiddleware.providers.llms.ladder import LEARNED, Attempts, Request
from qtmiddleware.providers.llms.prices import Prices, find_prices
from qtmiddleware.providers.llms.replies import (
    CHECK_ADDRESS,
    make_reply,
    raise_if_gateway_error,
    raise_if_refused,
    read_completion,
    read_text,
)
from qtmiddleware.providers.openai_client import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    copy_with_own_connections,
    find_provider,
    has_default_connections,
    is_async_client,
    is_plain_client,
    make_client,
    read_api_key,
    read_host,
    read_host_and_port,
)
from qtmiddleware.runtime.background_loop import iterate_in_background_loop
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.runtime.forking import leave_to_parent, make_lock, register_fork_reset
from qtmiddleware.runtime.threads import run_in_thread
from qtmiddleware.types import Deadline

ADDRESS_VARIABLE: Final = "QTM_LLM_BASE_URL"
_LONGEST_WAIT: Final = 600.0
_LONGEST_CONNECT: Final = 5.0


class Clients:
    """The clients of one service: the user's own, or clients that are made on first use.

    The user's clients are never closed. There is one async client per event loop, because a
    connection belongs to the loop that opened it: the user's async client is copied. A client made
    here is closed when its loop shuts down, or when nobody refers to it any more.
    """

    def __init__(self, client: Any, base_url: str | None) -> None:
        members = client if isinstance(client, tuple | list) else (client,)
        users = [member for member in members if member is not None]
        self._base_url = base_url
        self._makes_clients = not users
        self._sync = next((user for user in users if not is_async_client(user)), None)
        self._async = next((user for user in users if is_async_client(user)), None)
        self._lock = make_lock()
        self._made: Any = None
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[None]]] = {}
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Give up the parent's connections after a fork."""
        leave_to_parent(self._by_loop, self._made, self._sync)
        self._by_loop, self._made = {}, None
        if has_default_connections(self._sync):
            self._sync = copy_with_own_connections(self._sync)

    @property
    def has_sync_client(self) -> bool:
        """Whether there is a client for synchronous calls."""
        return self._makes_clients or self._sync is not None

    @property
    def has_async_client(self) -> bool:
        """Whether there is a client for asynchronous calls."""
        return self._makes_clients or self._async is not None

    @property
    def address(self) -> str:
        """The server's base URL; ``""`` if the user's client does not show it."""
        address: Any = find_address(self._base_url) or DEFAULT_ADDRESS
        if not self._makes_clients:
            client = self._async if self._sync is None else self._sync
            address = getattr(client, "base_url", "")
        return str(address).rstrip("/")

    def get_sync_client(self) -> tuple[Any, int]:
        """Return the client for a synchronous call, and how often to retry.

        Raises `ModelError` if there is no API key.
        """
        if self._sync is not None:
            return _take_over_retries(self._sync)
        with self._lock:
            if self._made is None:
                self._made = self._make_client(is_async=False)
            return self._made, 0

    async def get_async_client(self) -> tuple[Any, int]:
        """Return the client for a call in the running event loop, and how often to retry.

        Raises `ModelError` if the user gave only a sync client, or if there is no API key.
        """
        if not self.has_async_client:
            raise ModelError(
                "unavailable",
                "the client must be asynchronous for an asynchronous call; pass"
                " openai.AsyncOpenAI()",
            )
        # Only the user knows the proxies and certificates of an HTTP client that the user passed.
        if self._async is not None and not has_default_connections(self._async):
            return _take_over_retries(self._async)
        loop = asyncio.get_running_loop()
        if (client := self._find_open_client(loop)) is None:
            # In a thread, because the SDK and the certificates take a second to load.
            made = await run_in_thread(partial(self._make_client, is_async=True))
            # Another task may have been faster.
            if (client := self._find_open_client(loop)) is None:
                client, lifetime = made, _close_at_shutdown(made)
                running = {it: entry for it, entry in self._by_loop.items() if not it.is_closed()}
                self._by_loop = {**running, loop: (client, lifetime)}
                # Started here, so that this loop closes the generator, and with it the client.
                await anext(lifetime)
        return _take_over_retries(client)

    def _find_open_client(self, loop: asyncio.AbstractEventLoop) -> Any:
        client, _ = self._by_loop.get(loop, (None, None))
        return None if client is None or client.is_closed() else client

    def close(self) -> None:
        """Close the clients made here, each in its event loop. The next call makes new clients."""
        # An event loop closes a generator that nobody refers to any more.
        self._by_loop = {}
        with self._lock:
            client, self._made = self._made, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Like `close`, but wait until the running event loop's client is closed."""
        _, lifetime = self._by_loop.pop(asyncio.get_running_loop(), (None, None))
        if lifetime is not None:
            await lifetime.aclose()
        self.close()

    def _make_client(self, *, is_async: bool) -> Any:
        if self._makes_clients and not is_service_configured(self._base_url):
            raise ModelError(
                "unauthorized",
                f"the key for the language model is missing: set {KEY_VARIABLE}, or"
                f" {ADDRESS_VARIABLE} (llm.baseUrl) for a server that needs no key",
            )
        with explain_client_errors(partial(ModelError, "unavailable")):
            if not self._makes_clients:
                return copy_with_own_connections(self._async)
            # A retry would hide what a busy service says, and the breaker waits for it anyway.
            address = find_address(self._base_url)
            client = make_client(is_async=is_async, address=address, max_retries=0)
        # The SDK loads these when they are first used.
        _ = client.chat.completions, client.default_headers
        return client


async def _close_at_shutdown(client: Any) -> AsyncGenerator[None]:
    """Close *client* when the running event loop shuts down, or when this generator is freed.

    An event loop, on shutdown, closes the async generators that were started in the loop.
    """
    try:
        yield
    finally:
        await client.close()


def _take_over_retries(client: Any) -> tuple[Any, int]:
    """Return a copy of *client* that does not retry, and how often *client* retries.

    The SDK's own retries ignore the deadline.
    """
    if not is_plain_client(client) or not client.max_retries:
        return client, 0
    return client.with_options(max_retries=0), client.max_retries


def find_address(base_url: str | None) -> str | None:
    """Return the address for new clients; ``None`` if they use the SDK's default.

    The address is *base_url*, or else ``QTM_LLM_BASE_URL``, or else ``OPENAI_BASE_URL``.
    """
    values = (os.environ.get(name, "").strip() for name in (ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE))
    return base_url or next(filter(None, values), None)


def hash_address_and_key(base_url: str | None) -> int:
    """Return a hash of the address and the key that new clients use."""
    # A hash, so that the key itself is stored nowhere else.
    return hash((find_address(base_url), read_api_key()))


def is_service_configured(base_url: str | None) -> bool:
    """Return whether an API key or a service's address is configured.

    The address is *base_url* or comes from the environment. An address is enough, because a user's
    own server may need no key.
    """
    return bool(find_address(base_url) or read_api_key())


class OpenAIModel:
    """Calls a language model through the ``openai`` client.

    **Fallbacks.** With *structured_output* ``auto``, the first request asks for a JSON schema. If
    the service rejects the schema, the next request asks for ``json_object``, and then for plain
    text. A rejected ``temperature``, ``reasoning_effort``, token limit or stream option is lowered
    or omitted in the same way. The process remembers per address and model what was rejected.

    **Reasoning.** With *reasoning_effort* ``auto``, OpenAI's reasoning models get the least effort
    that they accept. If the model reasons, 10,000 tokens are added to the limit, and no temperature
    is sent.

    **Time.** Every request times out at the deadline, or at the client's own timeout if that is
    earlier. A client's ``max_retries`` is respected, but no retry begins after the deadline, and a
    service that asks for a longer pause is reported at once. Clients made here do not retry. A
    blocking call may exceed the deadline if the service sends its answer very slowly.

    **Clients.** If the user gave only an async client, `complete` and `stream` run in the
    background loop.

    **Streams.** A service may keep the stream open after the text, to send the token counts. So a
    `Reply` without cost is yielded as soon as the text is complete, and the whole `Reply` at the
    end of the stream. Closing the generator closes the connection.

    Args:
        model: The name of a chat model, such as ``gpt-4o-mini``.
        options: The options of the requests, and the prices.
        client: An ``openai.OpenAI``, an ``openai.AsyncOpenAI``, a pair of both, or `Clients` that
            several models share. By default, clients are made on first use with the key from
            ``OPENAI_API_KEY``. A user's own server needs no key.
    """

    def __init__(
        self, model: str, options: LlmSettings | None = None, *, client: Any = None
    ) -> None:
        self.name = model
        """The model's name."""
        self._options = options or LlmSettings()
        self._levels: dict[str, int] = {}
        is_shared = isinstance(client, Clients)
        self._clients = client if is_shared else Clients(client, self._options.base_url)
        self.prices = Prices(model, self._options.input_price, self._options.output_price)

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, host={read_host(self._clients.address)!r})"

    @property
    def provider(self) -> str:
        """The provider's name in OpenTelemetry; ``openai`` if the host is unknown."""
        return find_provider(read_host(self._clients.address))

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port; ``None`` if they are unknown."""
        return read_host_and_port(self._clients.address)

    @property
    def can_async(self) -> bool:
        """Whether `acomplete` can be called. ``False`` if the user gave only a sync client."""
        return self._clients.has_async_client

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        if not self._clients.has_sync_client:
            return complete_in_background(self.acomplete, prompt, deadline)
        completion, attempts = self._send(prompt, deadline)
        return self._add_costs(read_completion(completion), attempts)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* without blocking the event loop.

        Raises `ModelError` on failure.
        """
        completion, attempts = await self._asend(prompt, deadline)
        return self._add_costs(read_completion(completion), attempts)

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[str | Reply, None, None]:
        """Yield the pieces of the reply to *prompt* as they arrive, then the whole `Reply`.

        Raises `ModelError` on failure.
        """
        if not self._clients.has_sync_client:
            yield from iterate_in_background_loop(partial(self.astream, prompt, deadline))
            return
        answer, attempts = self._send(prompt, deadline, streams=True)
        reader = _StreamReader(partial(self._add_costs, attempts=attempts))
        try:
            for chunk in (answer,) if _is_whole(answer) else answer:
                yield from reader.read(chunk)
                require_seconds_left(deadline)
        except Exception as error:
            # If the text had ended before the error, at most the cost is missing.
            if not reader.is_whole:
                raise attempts.convert_error(error) from None
        finally:
            if hasattr(answer, "close"):
                answer.close()
        yield reader.make_reply()

    async def astream(
        self, prompt: Prompt, deadline: Deadline
    ) -> AsyncGenerator[str | Reply, None]:
        """Yield the pieces of the reply to *prompt* as they arrive, then the whole `Reply`.

        The event loop is not blocked. Raises `ModelError` on failure.
        """
        answer, attempts = await self._asend(prompt, deadline, streams=True)
        reader = _StreamReader(partial(self._add_costs, attempts=attempts))
        chunks = _yield_once(answer) if _is_whole(answer) else aiter(answer)
        try:
            while True:
                async with asyncio.timeout(min(require_seconds_left(deadline), _LONGEST_WAIT)):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                for piece in reader.read(chunk):
                    yield piece
        except Exception as error:
            if not reader.is_whole:
                raise attempts.convert_error(error) from None
        finally:
            if hasattr(answer, "close"):
                await answer.close()
        yield reader.make_reply()

    def _send(
        self, prompt: Prompt, deadline: Deadline, *, streams: bool = False
    ) -> tuple[Any, Attempts]:
        """Send requests until the service accepts one, and return its answer."""
        client, retries = self._clients.get_sync_client()
        attempts = self._begin(prompt, deadline, retries, streams)
        while True:
            timeout = _choose_timeout(client, deadline)
            try:
                return client.chat.completions.create(
                    **attempts.build_request(), timeout=timeout
                ), attempts
            except Exception as error:
                pause = attempts.choose_pause(error)
            time.sleep(pause)

    async def _asend(
        self, prompt: Prompt, deadline: Deadline, *, streams: bool = False
    ) -> tuple[Any, Attempts]:
        client, retries = await self._clients.get_async_client()
        attempts = self._begin(prompt, deadline, retries, streams)
        while True:
            timeout = _choose_timeout(client, deadline)
            try:
                async with asyncio.timeout(_choose_seconds(client, deadline)):
                    return await client.chat.completions.create(
                        **attempts.build_request(), timeout=timeout
                    ), attempts
            except Exception as error:
                pause = attempts.choose_pause(error)
            await asyncio.sleep(pause)

    def _begin(self, prompt: Prompt, deadline: Deadline, retries: int, streams: bool) -> Attempts:
        address = self._clients.address
        # A client that does not show its address may call any service.
        known = LEARNED.setdefault((address, self.name), {}) if address else self._levels
        request = Request(self.name, self._options, prompt, read_host(address), streams)
        return Attempts(request, known, deadline, retries)

    def _add_costs(self, reply: Reply, attempts: Attempts) -> Reply:
        """Return *reply* with the number of requests and the cost.

        A reply also proves that the service accepted the options of the last request.
        """
        attempts.remember_levels()
        usd = self.prices.compute_cost(reply.input_tokens, reply.output_tokens)
        return replace(reply, calls=attempts.count, cost_usd=usd)

    def warm_up(self) -> None:
        """Load the modules, the prices and the client that the first request needs.

        No request is sent. Raises `ModelError` if there is no API key.
        """
        from openai.resources.chat import completions

        _ = completions.Completions
        find_prices(self.name)
        if self._clients.has_sync_client:
            self._clients.get_sync_client()

    def close(self) -> None:
        """Close the clients made here. The user's clients stay open.

        The model stays usable: its next call makes new clients.
        """
        self._clients.close()

    async def aclose(self) -> None:
        """Like `close`, but wait until the running event loop's client is closed."""
        await self._clients.aclose()


class _StreamReader:
    """Builds one reply from the chunks of a stream.

    Attributes:
        is_whole: Whether the text is complete. The token counts may still be missing.
    """

    def __init__(self, add_costs: Callable[[Reply], Reply]) -> None:
        self._add_costs = add_costs
        self._texts: list[str] = []
        self._end = ""
        self._fields: dict[str, Any] = {}
        self._has_begun = False

    @property
    def is_whole(self) -> bool:
        return bool(self._end)

    def read(self, chunk: Any) -> Iterator[str | Reply]:
        """Yield the text in *chunk*, and, when the text is complete, the `Reply` so far.

        *chunk* may be a whole completion. Raises the errors of `read_completion`.
        """
        raise_if_gateway_error(chunk)
        # The counts come last, in a chunk without choices. Some services name the model only once.
        for name in ("model", "id", "usage"):
            if value := read_field(chunk, name):
                self._fields[name] = value
        choices = read_field(chunk, "choices")
        self._has_begun |= isinstance(choices, list | tuple)
        # Only the first choice is the answer.
        if not self._has_begun or not choices or read_field(choices[0], "index"):
            return
        message, end = read_field(choices[0], "message"), read_field(choices[0], "finish_reason")
        end = end.lower() if isinstance(end, str) else "stop" if message is not None else ""
        delta = message if message is not None else read_field(choices[0], "delta")
        raise_if_refused(delta, end)
        if text := replace_surrogates(read_text(delta)):
            self._texts.append(text)
            yield text
        if end and not self.is_whole:
            self._end = end
            if "".join(self._texts).strip():
                yield self.make_reply()

    def make_reply(self) -> Reply:
        """Return the reply; raise `ModelError` if there is no text or the stream was cut off."""
        if not self._has_begun:
            raise ModelError("unparsable", f"the model's response is not a stream; {CHECK_ADDRESS}")
        if not self.is_whole:
            raise ModelError("unavailable", "the model's answer was cut off")
        text = "".join(self._texts)
        return self._add_costs(make_reply(None, self._fields, finish_reason=self._end, text=text))


async def _yield_once(answer: Any) -> AsyncGenerator[Any]:
    yield answer


def _is_whole(answer: Any) -> bool:
    """Return whether *answer* is a whole completion rather than a stream."""
    return hasattr(answer, "choices") or isinstance(answer, str | Mapping)


def _choose_seconds(client: Any, deadline: Deadline) -> float:
    """Return how long a request may take: until *deadline*, or the timeout of *client*."""
    seconds = min(require_seconds_left(deadline), _LONGEST_WAIT)
    timeout = getattr(client, "timeout", None)
    own_seconds = getattr(timeout, "read", timeout)
    return min(seconds, own_seconds) if isinstance(own_seconds, int | float) else seconds


def _choose_timeout(client: Any, deadline: Deadline) -> Any:
    """Return the SDK's ``timeout`` for a request of *client*."""
    seconds = _choose_seconds(client, deadline)
    if not is_plain_client(client):
        return seconds
    import openai

    # A model may be slow, but its host accepts connections quickly. Connecting times out sooner
    # than the request, because a TLS handshake is cleaned up then, but not if it is cancelled.
    return openai.Timeout(seconds, connect=min(0.9 * seconds, _LONGEST_CONNECT))


def accepts(candidate: Any) -> bool:
    """Return whether *candidate* is an ``openai`` client, or a tuple or list of such clients."""
    members = candidate if isinstance(candidate, tuple | list) and candidate else (candidate,)
    return all(
        hasattr(getattr(getattr(member, "chat", None), "completions", None), "create")
        and not isinstance(member, type | str)
        for member in members
    )
