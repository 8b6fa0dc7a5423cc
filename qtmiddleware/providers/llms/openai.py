"""Call the language models of OpenAI and of other services with the same chat completions API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers import openai_client, replace_surrogates
from qtmiddleware.providers.errors import convert_client_error, require_seconds_left
from qtmiddleware.providers.llms import replies
from qtmiddleware.providers.llms.ladder import LEARNED, LONGEST_WAIT, Attempts, build_request
from qtmiddleware.providers.llms.prices import Prices, find_prices
from qtmiddleware.providers.openai_client import Clients, read_host
from qtmiddleware.runtime.background_loop import run_in_background_loop
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.types import Deadline

T = TypeVar("T")


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
        attempts = self._begin(self._clients.get_sync_client(), prompt, deadline)
        return self._finish(replies.read_completion(_send(attempts)), attempts)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* without blocking the event loop.

        Raises `ModelError` on failure.
        """
        attempts = self._begin(await self._clients.get_async_client(), prompt, deadline)
        return self._finish(replies.read_completion(await _asend(attempts)), attempts)

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[str | Reply, None, None]:
        """Yield the pieces of the reply to *prompt* as they arrive, then the whole `Reply`.

        Raises `ModelError` on failure.
        """
        if not self._clients.has_sync_client:
            yield from _iterate_in_background_loop(self.astream(prompt, deadline))
            return
        attempts = self._begin(self._clients.get_sync_client(), prompt, deadline, streams=True)
        reader = _StreamReader(partial(self._finish, attempts=attempts))
        answer = _send(attempts)
        try:
            for chunk in (answer,) if _is_whole(answer) else answer:
                yield from reader.read(chunk)
                require_seconds_left(deadline)
        except Exception as error:
            # If the text had ended before the error, at most the cost is missing.
            if not reader.end:
                raise convert_client_error(error, attempts.service) from None
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
        client = await self._clients.get_async_client()
        attempts = self._begin(client, prompt, deadline, streams=True)
        reader = _StreamReader(partial(self._finish, attempts=attempts))
        answer = await _asend(attempts)
        chunks = _yield_once(answer) if _is_whole(answer) else aiter(answer)
        try:
            while True:
                async with asyncio.timeout(min(require_seconds_left(deadline), LONGEST_WAIT)):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                for piece in reader.read(chunk):
                    yield piece
        except Exception as error:
            # If the text had ended before the error, at most the cost is missing.
            if not reader.end:
                raise convert_client_error(error, attempts.service) from None
        finally:
            if hasattr(answer, "close"):
                await answer.close()
        yield reader.make_reply()

    def _begin(
        self,
        client: tuple[Any, int],
        prompt: Prompt,
        deadline: Deadline,
        *,
        streams: bool = False,
    ) -> Attempts:
        address = self._clients.address
        # A client that does not show its address may call any service.
        known = LEARNED.setdefault((address, self.name), {}) if address else self._levels
        host = read_host(address)
        build = partial(build_request, self.name, self._options, prompt, host=host, streams=streams)
        return Attempts(*client, build, known, f"{self.name} at {host}", deadline)

    def _finish(self, reply: Reply, attempts: Attempts) -> Reply:
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


def _send(attempts: Attempts) -> Any:
    """Send requests until the service accepts one, and return its answer."""
    while True:
        try:
            return attempts.client.chat.completions.create(**attempts.build_next())
        except Exception as error:
            pause = attempts.choose_pause(error)
        time.sleep(pause)


async def _asend(attempts: Attempts) -> Any:
    while True:
        try:
            request = attempts.build_next()
            async with asyncio.timeout(attempts.seconds):
                return await attempts.client.chat.completions.create(**request)
        except Exception as error:
            pause = attempts.choose_pause(error)
        await asyncio.sleep(pause)


def _iterate_in_background_loop(pieces: AsyncGenerator[T]) -> Generator[T, None, None]:
    try:
        while (piece := run_in_background_loop(anext(pieces, None))) is not None:
            yield piece
    finally:
        run_in_background_loop(pieces.aclose())


class _StreamReader:
    """Builds one reply from the chunks of a stream.

    Attributes:
        end: Why the model stopped; ``""`` until the text is complete. The token counts may still be
            missing.
    """

    def __init__(self, finish: Callable[[Reply], Reply]) -> None:
        self._finish = finish
        self.end = ""
        self._texts: list[str] = []
        self._fields: dict[str, Any] = {}
        self._has_begun = False

    def read(self, chunk: Any) -> Iterator[str | Reply]:
        """Yield the text in *chunk*, and, when the text is complete, the `Reply` so far.

        *chunk* may be a whole completion. Raises the errors of `read_completion`.
        """
        replies.raise_if_gateway_error(chunk)
        # The counts come last, in a chunk without choices. Some services name the model only once.
        for name in ("model", "id", "usage"):
            if value := read_field(chunk, name):
                self._fields[name] = value
        choices = read_field(chunk, "choices")
        self._has_begun |= isinstance(choices, list | tuple)
        # Only the first choice is the answer.
        if not self._has_begun or not choices or read_field(choices[0], "index"):
            return
        message = read_field(choices[0], "message")
        end = read_field(choices[0], "finish_reason")
        end = end.lower() if isinstance(end, str) else "stop" if message is not None else ""
        delta = message if message is not None else read_field(choices[0], "delta")
        replies.raise_if_refused(delta, end)
        if text := replace_surrogates(replies.join_texts(read_field(delta, "content")) or ""):
            self._texts.append(text)
            yield text
        if end and not self.end:
            self.end = end
            if "".join(self._texts).strip():
                yield self.make_reply()

    def make_reply(self) -> Reply:
        """Return the reply; raise `ModelError` if there is no text or the stream was cut off."""
        if not self._has_begun:
            raise ModelError(
                "unparsable", f"the model's response is not a stream; {replies.CHECK_ADDRESS}"
            )
        if not self.end:
            raise ModelError("unavailable", "the model's answer was cut off")
        text = "".join(self._texts)
        return self._finish(replies.make_reply(text, self._fields, finish_reason=self.end))


async def _yield_once(answer: Any) -> AsyncGenerator[Any]:
    yield answer


def _is_whole(answer: Any) -> bool:
    """Return whether *answer* is a whole completion rather than a stream."""
    return hasattr(answer, "choices") or isinstance(answer, str | Mapping)
