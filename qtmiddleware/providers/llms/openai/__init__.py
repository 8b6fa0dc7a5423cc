"""Call the language models of OpenAI and of other services with the same chat completions API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from dataclasses import replace
from functools import partial
from typing import Any

from qtmiddleware.config.settings import ReasoningEffort, Settings, StructuredOutput
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.calls import (
    LONGEST_WAIT,
    complete_in_background,
    find_request_timeout,
    make_timeout,
)
from qtmiddleware.providers.llms.openai.clients import Clients, can_stream
from qtmiddleware.providers.llms.openai.prices import Prices, find_prices
from qtmiddleware.providers.llms.openai.replies import StreamReader, is_whole_completion
from qtmiddleware.providers.llms.openai.requests import Negotiator, Received, Response
from qtmiddleware.providers.openai_client import find_provider
from qtmiddleware.runtime.background_loop import iterate_in_background_loop
from qtmiddleware.runtime.steps import adrive_generator, drive_generator
from qtmiddleware.types import Deadline


class OpenAIModel:
    """Calls a language model through the ``openai`` client.

    **Clients.** The user's clients are never closed. The user's async client is copied for each
    event loop. The copy opens its own connections, so the user's own calls are not affected. If the
    user gave only an async client, `complete` and `stream` run in the background loop.

    **Fallbacks.** With *structured_output* ``auto``, the first request asks for a JSON schema. If
    the provider rejects the schema, the next request asks for ``json_object``, and then for plain
    text. The process remembers the accepted format per address and model. A rejected
    ``temperature``, ``reasoning_effort`` or token limit is omitted from later requests. The model
    object remembers these options. One prompt takes at most five requests.

    **Reasoning.** With *reasoning_effort* ``auto``, OpenAI's reasoning models get the least effort
    that they accept. For other models, no effort is sent. The token limit is sent as
    ``max_completion_tokens`` to OpenAI and to reasoning models, and as ``max_tokens`` to all other
    services. If the model reasons, 10,000 tokens are added to the limit, and no temperature is
    sent.

    **Timeouts.** Every request times out at the deadline. The SDK's retries are turned off, because
    they ignore the deadline. A user's async client keeps its retries, because its call is cancelled
    at the deadline. A synchronous call may exceed the deadline by one read, or by more if the
    server sends its headers very slowly. `Reply.calls` counts all requests for the prompt, and the
    retries of the request that succeeded.

    **Streams.** Pieces are yielded as the server sends them. A server that cannot stream sends the
    whole answer as the only piece. Some servers send no token counts and keep the stream open. So a
    `Reply` without cost is yielded as soon as the text is complete, and the whole `Reply` at the
    end of the stream. Closing the generator closes the connection.

    Args:
        model: The name of a chat model, such as ``gpt-4o-mini``.
        client: An ``openai.OpenAI``, an ``openai.AsyncOpenAI``, a pair of both, or `Clients` that
            several models share. By default, the model makes clients on first use with the key from
            ``OPENAI_API_KEY``. A user's own server needs no key.
        base_url: The service's address; by default ``QTM_LLM_BASE_URL``, else the SDK's default.
        temperature: The sampling temperature; ``None`` sends no temperature.
        temperatures: The temperature per prompt mode. An entry overrides *temperature*.
        max_tokens: The maximum number of tokens in an answer; ``None`` sends no limit.
        structured_output: The format to request: ``json_schema``, ``json_object``, ``text``, or
            ``auto``.
        reasoning_effort: The reasoning effort to request; ``auto`` chooses the effort as described
            above, and ``None`` sends no effort.
        input_price: US dollars per million input tokens; by default the model's list price.
        output_price: US dollars per million output tokens; by default the model's list price.
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        temperature: float | None = 0.0,
        temperatures: Mapping[str, float] | None = None,
        max_tokens: int | None = 800,
        structured_output: StructuredOutput = "auto",
        reasoning_effort: ReasoningEffort | None = "auto",
        input_price: float | None = None,
        output_price: float | None = None,
    ) -> None:
        self._model = model
        self._clients = client if isinstance(client, Clients) else Clients(client, base_url)
        self._negotiator = Negotiator(
            model,
            self._clients,
            temperature=temperature,
            temperatures=temperatures,
            max_tokens=max_tokens,
            response_format=None if structured_output == "auto" else structured_output,
            reasoning_effort=reasoning_effort,
        )
        self.prices = Prices(model, input_price, output_price)

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, host={self._clients.host!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    @property
    def provider(self) -> str:
        """The provider's name in OpenTelemetry; ``openai`` if the host is unknown."""
        return find_provider(self._clients.host)

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port; ``None`` if they are unknown."""
        return self._clients.server

    @property
    def can_async(self) -> bool:
        """Whether `acomplete` can be called. ``False`` if the user gave only a sync client."""
        return self._clients.has_async_client

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        if not self._clients.has_sync_client:
            return complete_in_background(self.acomplete, prompt, deadline)
        pieces = self._yield_pieces(prompt, deadline, should_stream=False)
        # An earlier `Reply` may lack its cost.
        return [piece for piece in pieces if isinstance(piece, Reply)][-1]

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* without blocking the event loop.

        Raises `ModelError` on failure.
        """
        async with aclosing(self._ayield_pieces(prompt, deadline, should_stream=False)) as pieces:
            return [piece async for piece in pieces if isinstance(piece, Reply)][-1]

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        """Yield the pieces of the reply to *prompt* as they arrive, then the whole `Reply`.

        Raises `ModelError` on failure.
        """
        if not self._clients.has_sync_client:
            return iterate_in_background_loop(partial(self.astream, prompt, deadline))
        return self._yield_pieces(prompt, deadline, should_stream=True)

    def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncGenerator[str | Reply, None]:
        """Yield the pieces of the reply to *prompt* as they arrive, then the whole `Reply`.

        The event loop is not blocked. Raises `ModelError` on failure.
        """
        return self._ayield_pieces(prompt, deadline, should_stream=True)

    def _yield_pieces(
        self, prompt: Prompt, deadline: Deadline, *, should_stream: bool
    ) -> Iterator[str | Reply]:
        """Yield the pieces of the reply, then the whole `Reply`.

        If *should_stream* is true, the requests ask for a stream.
        """
        reader = StreamReader(deadline, is_stream=should_stream)
        with ExitStack() as stack:
            negotiation = self._negotiator.negotiate_response(prompt, should_stream=should_stream)
            response = drive_generator(
                negotiation, partial(self._send_request, deadline=deadline, stack=stack)
            )
            while not reader.is_done:
                try:
                    chunk = next(response.answer, None)
                except Exception as error:
                    # The answer had ended before the error, so nothing is missing.
                    if reader.is_whole:
                        break
                    raise self._negotiator.convert_error(error) from None
                if chunk is None:
                    break
                for piece in reader.read_chunk(chunk):
                    yield self._add_costs(response, piece)
        for piece in reader.yield_rest_and_reply():
            yield self._add_costs(response, piece)

    async def _ayield_pieces(
        self, prompt: Prompt, deadline: Deadline, *, should_stream: bool
    ) -> AsyncGenerator[str | Reply, None]:
        """Yield the pieces of the reply, then the whole `Reply`, without blocking the event loop.

        If *should_stream* is true, the requests ask for a stream.
        """
        reader = StreamReader(deadline, is_stream=should_stream)
        async with AsyncExitStack() as stack:
            negotiation = self._negotiator.negotiate_response(prompt, should_stream=should_stream)
            response = await adrive_generator(
                negotiation, partial(self._asend_request, deadline=deadline, stack=stack)
            )
            while not reader.is_done:
                try:
                    async with asyncio.timeout(find_request_timeout(deadline)):
                        chunk = await anext(response.answer, None)
                except Exception as error:
                    # As in `_yield_pieces`: the answer is complete, so the error is harmless.
                    if reader.is_whole:
                        break
                    raise self._negotiator.convert_error(error) from None
                if chunk is None:
                    break
                for piece in reader.read_chunk(chunk):
                    yield self._add_costs(response, piece)
        for piece in reader.yield_rest_and_reply():
            yield self._add_costs(response, piece)

    def _add_costs(self, response: Response, piece: str | Reply) -> str | Reply:
        """Return *piece*. If it is a `Reply`, add the number of calls and the cost.

        A `Reply` also proves that the provider accepted the request's options. So the accepted
        options are remembered for later requests.
        """
        if isinstance(piece, str):
            return piece
        self._negotiator.remember_capabilities(response.capabilities)
        usd = self.prices.compute_cost(piece.input_tokens, piece.output_tokens)
        return replace(piece, calls=response.calls, cost_usd=usd)

    def warm_up(self) -> None:
        """Load the modules, prices and clients that the first request needs. No request is sent.

        Raises `ModelError` if there is no API key.
        """
        # The SDK imports these modules when a client or a request is first used.
        import pydantic
        from openai.resources.chat import completions

        _ = pydantic.create_model, completions.Completions
        find_prices(self._model)
        client = self._clients.get_sync_client()
        if can_stream(client):
            _ = (
                make_timeout(LONGEST_WAIT),
                client.chat.completions.with_streaming_response,
                client.default_headers,
            )

    def close(self) -> None:
        """Close the sync client and the background loop's client. The user's clients stay open.

        The model stays usable: its next call makes new clients.
        """
        self._clients.close()

    async def aclose(self) -> None:
        """Close the sync client and the clients of the background loop and the running event loop.

        The user's clients stay open. The model stays usable: its next call makes new clients.
        """
        await self._clients.aclose()

    def _send_request(
        self, request: dict[str, Any], deadline: Deadline, stack: ExitStack
    ) -> Received:
        """Send *request*, and return the answer's pieces and the number of retries by the SDK.

        The pieces are an iterator that can be read until *stack* is closed.
        """
        client = self._clients.get_sync_client()
        seconds = find_request_timeout(deadline)
        completions = client.chat.completions
        if can_stream(client):
            opened = completions.with_streaming_response.create(
                **request, timeout=make_timeout(seconds)
            )
            response = stack.enter_context(opened)
            return stack.enter_context(closing(response.iter_bytes())), _count_retries(response)
        answer = completions.create(**request, timeout=seconds)
        # A wrapper or a test double may ignore `stream` and return the whole completion.
        if "stream" not in request or is_whole_completion(answer):
            return iter((answer,)), 0
        chunks = iter(answer)
        # The stream and its iterator may be two objects that must both be closed.
        for opened in (answer, chunks):
            if hasattr(opened, "close"):
                stack.callback(opened.close)
        return chunks, 0

    async def _asend_request(
        self, request: dict[str, Any], deadline: Deadline, stack: AsyncExitStack
    ) -> Received:
        client = await self._clients.get_async_client()
        seconds = find_request_timeout(deadline)
        completions = client.chat.completions
        # A user's client may retry, so this timeout covers all of its tries.
        async with asyncio.timeout(seconds):
            if can_stream(client):
                opened = completions.with_streaming_response.create(
                    **request, timeout=make_timeout(seconds)
                )
                response = await stack.enter_async_context(opened)
                return await stack.enter_async_context(
                    aclosing(response.iter_bytes())
                ), _count_retries(response)
            answer = await completions.create(**request, timeout=seconds)
        if "stream" not in request or is_whole_completion(answer):
            return _yield_once(answer), 0
        chunks = aiter(answer)
        for opened, close in ((answer, "close"), (chunks, "aclose")):
            if hasattr(opened, close):
                stack.push_async_callback(getattr(opened, close))
        return chunks, 0


async def _yield_once(answer: Any) -> AsyncIterator[Any]:
    yield answer


def _count_retries(response: Any) -> int:
    retries = getattr(response, "retries_taken", 0)
    return retries if isinstance(retries, int) else 0


def accepts(candidate: Any) -> bool:
    """Return whether *candidate* is an ``openai`` client, or a tuple or list of such clients."""
    members = candidate if isinstance(candidate, tuple | list) and candidate else (candidate,)
    return isinstance(candidate, Clients) or all(_is_openai_client(member) for member in members)


def make_model(client: Any, settings: Settings) -> OpenAIModel:
    """Return an `OpenAIModel` that uses *client*, with the name and options from *settings*.

    If *client* is ``None``, the model makes a client on first use.
    """
    llm = settings.llm
    return OpenAIModel(
        settings.transformation_model,
        client=client,
        base_url=llm.base_url,
        temperature=llm.temperature,
        temperatures=llm.temperatures,
        max_tokens=llm.max_tokens,
        structured_output=llm.structured_output,
        reasoning_effort=llm.reasoning_effort,
        input_price=llm.input_price,
        output_price=llm.output_price,
    )


def _is_openai_client(candidate: Any) -> bool:
    if candidate is None or isinstance(candidate, type | str):
        return False
    return hasattr(getattr(getattr(candidate, "chat", None), "completions", None), "create")
