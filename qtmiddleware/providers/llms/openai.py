"""Call the language models of OpenAI and of other services with the same chat completions API."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers import openai_client, replace_surrogates
from qtmiddleware.providers.errors import convert_client_error, require_seconds_left
from qtmiddleware.providers.llms import replies
from qtmiddleware.providers.llms.openai_requests import (
    LEARNED,
    LONGEST_WAIT,
    build_request,
    send_request,
)
from qtmiddleware.providers.llms.prices import Prices, find_prices
from qtmiddleware.providers.openai_client import Clients, read_host
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.runtime.io import drive, run_in_background_loop
from qtmiddleware.types import Deadline

Piece = str | Reply


class OpenAIModel:
    """Calls a language model through the ``openai`` client.

    - With *structured_output* ``auto``, a rejected JSON schema becomes ``json_object``, and then
      plain text. Other rejected options are lowered or omitted in the same way. The process
      remembers per address and model what was rejected.
    - With *reasoning_effort* ``auto``, OpenAI's reasoning models get the least effort they accept.
    - Every request times out at the deadline. A user's client retries as its ``max_retries`` says;
      clients made here do not retry.
    - If the user gave only an async client, blocking calls run in the background loop.

    *client* is an ``openai`` client or `Clients`; by default, clients are made on first use with
    the key from ``OPENAI_API_KEY``.
    """

    def __init__(
        self, model: str, options: LlmSettings | None = None, *, client: Any = None
    ) -> None:
        self.name = model
        """The model's name."""
        self._options = options or LlmSettings()
        is_shared = isinstance(client, Clients)
        self._clients = client if is_shared else Clients(client, self._options.base_url)
        self.can_async = self._clients.has_async_client
        """Whether `acomplete` can be called. ``False`` if the user gave only a sync client."""
        self.prices = Prices(model, self._options.input_price, self._options.output_price)

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, host={read_host(self._clients.address)!r})"

    @property
    def provider(self) -> str:
        """The provider's name in OpenTelemetry; ``openai`` if the host is unknown."""
        return openai_client.find_provider(read_host(self._clients.address))

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port; ``None`` if they are unknown."""
        return openai_client.read_host_and_port(self._clients.address)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        if not self._clients.has_sync_client:
            return run_in_background_loop(self.acomplete(prompt, deadline))
        return drive(self._complete(self._clients.get_sync_client(), prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* as `complete` does, without blocking the event loop."""
        return await self._complete(await self._clients.get_async_client(), prompt, deadline)

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[Piece, None, None]:
        """Yield the pieces of the reply to *prompt* as they arrive, then the whole `Reply`.

        Closing the generator closes the connection. Raises `ModelError` on failure.
        """
        wait: Callable[[Any], Any] = drive
        if self._clients.has_sync_client:
            pieces = self._stream(self._clients.get_sync_client(), prompt, deadline)
        else:
            pieces, wait = self.astream(prompt, deadline), run_in_background_loop
        try:
            while (piece := wait(anext(pieces, None))) is not None:
                yield piece
        finally:
            wait(pieces.aclose())

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncGenerator[Piece, None]:
        """Yield pieces and the `Reply` as `stream` does, without blocking the event loop."""
        client = await self._clients.get_async_client()
        async with aclosing(self._stream(client, prompt, deadline)) as pieces:
            async for piece in pieces:
                yield piece

    # Over a blocking client, nothing that the next methods await ever suspends.

    async def _complete(self, client: Any, prompt: Prompt, deadline: Deadline) -> Reply:
        answer, count = await self._send(client, prompt, deadline)
        return self._count_cost(replies.read_completion(answer), count)

    async def _stream(
        self, client: Any, prompt: Prompt, deadline: Deadline
    ) -> AsyncGenerator[Piece, None]:
        reader = _StreamReader()
        answer, count = await self._send(client, prompt, deadline, streams=True)
        try:
            async with aclosing(_read_chunks(answer, deadline)) as chunks:
                async for chunk in chunks:
                    if text := reader.read(chunk):
                        yield text
        except Exception as error:
            # If the text had ended before the error, at most the cost is missing.
            if not reader.end:
                raise convert_client_error(error, self._service) from None
        finally:
            if hasattr(answer, "close") and inspect.isawaitable(closing := answer.close()):
                await closing
        yield self._count_cost(reader.make_reply(), count)

    async def _send(
        self, client: Any, prompt: Prompt, deadline: Deadline, *, streams: bool = False
    ) -> tuple[Any, int]:
        address = self._clients.address
        build = partial(
            build_request,
            self.name,
            self._options,
            prompt,
            host=read_host(address),
            streams=streams,
        )
        known = LEARNED.setdefault((address, self.name), {})
        return await send_request(client, build, known, self._service, deadline)

    @property
    def _service(self) -> str:
        return f"{self.name} at {read_host(self._clients.address)}"

    def _count_cost(self, reply: Reply, request_count: int) -> Reply:
        usd = self.prices.compute_cost(reply.input_tokens, reply.output_tokens)
        return replace(reply, calls=request_count, cost_usd=usd)

    def warm_up(self) -> None:
        """Load the modules, the prices and the client that the first request needs."""
        find_prices(self.name)
        if self._clients.has_sync_client:
            self._clients.get_sync_client()

    def close(self) -> None:
        """Close the clients made here. The next call makes new clients."""
        self._clients.close()

    async def aclose(self) -> None:
        """Like `close`, but wait until the running event loop's client is closed."""
        await self._clients.aclose()


async def _read_chunks(answer: Any, deadline: Deadline) -> AsyncGenerator[Any, None]:
    if not hasattr(answer, "__aiter__"):
        for chunk in answer:
            yield chunk
            require_seconds_left(deadline)
        return
    chunks: AsyncIterator[Any] = aiter(answer)
    while True:
        async with asyncio.timeout(min(require_seconds_left(deadline), LONGEST_WAIT)):
            chunk = await anext(chunks, None)
        if chunk is None:
            return
        yield chunk


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
        end = read_field(choices[0], "finish_reason")
        self.end = self.end or (end.lower() if isinstance(end, str) else "")
        delta = read_field(choices[0], "delta")
        replies.raise_if_refused(delta, self.end)
        text = replace_surrogates(replies.join_texts(read_field(delta, "content")) or "")
        self._text += text
        return text

    def make_reply(self) -> Reply:
        """Return the reply; raise `ModelError` if there is no text or the stream was cut off."""
        if not self._has_begun:
            raise ModelError(
                "unparsable", f"the model's response is not a stream; {replies.CHECK_ADDRESS}"
            )
        if not self.end:
            raise ModelError("unavailable", "the model's answer was cut off")
        return replies.make_reply(self._text, self._fields, finish_reason=self.end)
