"""OpenAI, and every service that speaks its chat completions, as a language model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
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
from qtmiddleware.providers.llms.openai.prices import OPENAI, Prices, find_prices
from qtmiddleware.providers.llms.openai.replies import StreamReader, is_whole_completion
from qtmiddleware.providers.llms.openai.requests import (
    Negotiator,
    Received,
    Response,
    find_least_effort,
)
from qtmiddleware.providers.openai_client import find_provider
from qtmiddleware.runtime.background_loop import iterate_in_background_loop
from qtmiddleware.runtime.steps import aconverse, converse
from qtmiddleware.types import Deadline


class OpenAIModel:
    """Asks *model* through the ``openai`` client and learns what its provider understands.

    *client* is an ``openai.OpenAI``, an ``openai.AsyncOpenAI``, a pair of both, `Clients` that
    several models share, or
    ``None``: then clients are made on first use, the key from ``OPENAI_API_KEY``, the address from
    *base_url*, else from ``QTM_LLM_BASE_URL``, else the SDK's default. A server of one's own needs
    no key. Given clients are never closed, and a given async one is copied, with connections of the
    copy's own, for every event loop, so that the caller's own calls with it are not touched. Where
    it is the only one, `complete` and `stream` run in one private event loop, whose connections are
    kept. *can_async* says whether `acomplete` and `astream` can be called.

    *temperature* and *max_tokens* ``None`` send none; *temperatures* are those of single prompts,
    by their mode, in place of *temperature*. *structured_output* ``auto`` asks for a JSON schema
    and steps down to ``json_object`` and to plain text where that is refused; a refused
    ``temperature``, ``reasoning_effort`` or token limit is left out likewise. What was refused is
    remembered as long as this object lives, and one prompt costs at most five requests.
    *input_price* and *output_price* are US dollars for a million tokens, for models whose prices
    are not known.

    *reasoning_effort* ``auto`` asks OpenAI's models that reason for the least they take, and sends
    none to others. The token limit is called ``max_completion_tokens`` for those models and at
    OpenAI's own address, elsewhere ``max_tokens``. Where such a model thinks, room for that is
    added to the limit, and no temperature is sent.

    Every request has the rest of the deadline as its timeout. The SDK's retries are turned off,
    because they sleep as long as the server says, without knowing of a deadline; a given async
    client retries as it was told to, since it is cancelled at the deadline. A synchronous call ends
    there plus at most one read; only a server that trickles headers can hold it longer. Of an
    error's body at most 64 KiB are kept. `Reply.calls` counts the requests of the stepping down and
    the retries of the one that succeeded.

    Streams are read as the server sends them; one that does not stream, or refuses to, is asked for
    the whole, which then is the only piece. A `Reply` that is not the last thing to come says that
    the answer has ended and what it cost is still being waited for: some servers never send that,
    nor close. Whoever stops listening closes the connection.
    """

    _price_list = OPENAI
    _find_effort = staticmethod(find_least_effort)
    _advice: Mapping[str, str] = MappingProxyType({})

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
            lambda: self._clients.host,
            temperature=temperature,
            temperatures=temperatures,
            max_tokens=max_tokens,
            response_format=None if structured_output == "auto" else structured_output,
            reasoning_effort=reasoning_effort,
            find_effort=self._find_effort,
            advice=self._advice,
        )
        self.prices = Prices(model, input_price, output_price, self._price_list)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, host={self._clients.host!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    @property
    def provider(self) -> str:
        """Who serves the model, as OpenTelemetry's conventions call them; ``openai`` where the host is not known."""
        return find_provider(self._clients.host)

    @property
    def server(self) -> tuple[str, int] | None:
        """The host and port it is asked at, where they are known."""
        return self._clients.server

    @property
    def can_async(self) -> bool:
        """Whether `acomplete` can be called."""
        return self._clients.can_async

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        if not self._clients.can_block:
            return complete_in_background(self.acomplete, prompt, deadline)
        pieces = self._exchange(prompt, deadline, streams=False)
        return [piece for piece in pieces if isinstance(piece, Reply)][-1]

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        async with aclosing(self._aexchange(prompt, deadline, streams=False)) as pieces:
            return [piece async for piece in pieces if isinstance(piece, Reply)][-1]

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        """The pieces of the reply to *prompt* as they come and, last, the whole; raises `ModelError`."""
        if not self._clients.can_block:
            return iterate_in_background_loop(partial(self.astream, prompt, deadline))
        return self._exchange(prompt, deadline, streams=True)

    def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncGenerator[str | Reply, None]:
        """The pieces of the reply to *prompt* as they come and, last, the whole; raises `ModelError`."""
        return self._aexchange(prompt, deadline, streams=True)

    def _exchange(
        self, prompt: Prompt, deadline: Deadline, *, streams: bool
    ) -> Iterator[str | Reply]:
        reader = StreamReader(deadline, streams=streams)
        with self._clients.in_use, ExitStack() as stack:
            negotiation = self._negotiator.negotiate(prompt, streams=streams)
            response = converse(negotiation, partial(self._open, deadline=deadline, stack=stack))
            while not reader.is_done:
                try:
                    chunk = next(response.answer, None)
                except Exception as error:
                    # Nothing is missing of an answer that had ended already.
                    if reader.is_whole:
                        break
                    raise self._negotiator.read_error(error) from None
                if chunk is None:
                    break
                for piece in reader.feed(chunk):
                    yield self._account(response, piece)
        for piece in reader.end():
            yield self._account(response, piece)

    async def _aexchange(
        self, prompt: Prompt, deadline: Deadline, *, streams: bool
    ) -> AsyncGenerator[str | Reply, None]:
        reader = StreamReader(deadline, streams=streams)
        with self._clients.in_use:
            async with AsyncExitStack() as stack:
                negotiation = self._negotiator.negotiate(prompt, streams=streams)
                response = await aconverse(
                    negotiation, partial(self._aopen, deadline=deadline, stack=stack)
                )
                while not reader.is_done:
                    try:
                        async with asyncio.timeout(find_request_timeout(deadline)):
                            chunk = await anext(response.answer, None)
                    except Exception as error:
                        if reader.is_whole:
                            break
                        raise self._negotiator.read_error(error) from None
                    if chunk is None:
                        break
                    for piece in reader.feed(chunk):
                        yield self._account(response, piece)
        for piece in reader.end():
            yield self._account(response, piece)

    def _account(self, response: Response, piece: str | Reply) -> str | Reply:
        """*piece*, where it is the reply with what it cost; what its provider understood is remembered then."""
        if isinstance(piece, str):
            return piece
        self._negotiator.learn(response.capabilities)
        usd = self.prices.cost(piece.input_tokens, piece.output_tokens)
        return replace(piece, calls=response.calls, cost_usd=usd)

    def warm_up(self) -> None:
        """Load and make what asking takes, and send nothing; raises `ModelError` where there is no key."""
        # What a client and a request load by themselves when they are first used.
        import pydantic
        from openai.resources.chat import completions

        _ = pydantic.create_model, completions.Completions
        find_prices(self._model)
        client = self._clients.sync()
        if can_stream(client):
            _ = (
                make_timeout(LONGEST_WAIT),
                client.chat.completions.with_streaming_response,
                client.default_headers,
            )

    def close(self) -> None:
        """Close our sync client and our async client of the private loop; the model stays usable."""
        self._clients.close()

    async def aclose(self) -> None:
        """`close` for our async client of the running event loop too; the model stays usable."""
        await self._clients.aclose()

    def _open(self, request: dict[str, Any], deadline: Deadline, stack: ExitStack) -> Received:
        """What comes back, as an iterator of its pieces that lives as long as *stack*."""
        client = self._clients.sync()
        left = find_request_timeout(deadline)
        completions = client.chat.completions
        if can_stream(client):
            opened = completions.with_streaming_response.create(
                **request, timeout=make_timeout(left)
            )
            response = stack.enter_context(opened)
            return stack.enter_context(closing(response.iter_bytes())), _count_retries(response)
        answer = completions.create(**request, timeout=left)
        if "stream" not in request or is_whole_completion(answer):
            return iter((answer,)), 0
        chunks = iter(answer)
        for opened in (answer, chunks):
            if hasattr(opened, "close"):
                stack.callback(opened.close)
        return chunks, 0

    async def _aopen(
        self, request: dict[str, Any], deadline: Deadline, stack: AsyncExitStack
    ) -> Received:
        client = await self._clients.asynchronous()
        left = find_request_timeout(deadline)
        completions = client.chat.completions
        async with asyncio.timeout(left):
            if can_stream(client):
                opened = completions.with_streaming_response.create(
                    **request, timeout=make_timeout(left)
                )
                response = await stack.enter_async_context(opened)
                return await stack.enter_async_context(
                    aclosing(response.iter_bytes())
                ), _count_retries(response)
            answer = await completions.create(**request, timeout=left)
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


def accepts(given: Any) -> bool:
    """Whether *given* is a client of the ``openai`` package, or several."""
    members = given if isinstance(given, tuple | list) and given else (given,)
    return isinstance(given, Clients) or all(_is_client(member) for member in members)


def make_model(client: Any, settings: Settings) -> OpenAIModel:
    """The model that *settings* name, asked through *client*; ``None`` is a client of our own."""
    options = read_options(settings)
    return OpenAIModel(
        settings.transformation_model, client=client, base_url=settings.llm.base_url, **options
    )


def read_options(settings: Settings) -> dict[str, Any]:
    """What *settings* say of how a model is asked, as arguments of `OpenAIModel`."""
    llm = settings.llm
    return {
        "temperature": llm.temperature,
        "temperatures": find_temperatures(settings),
        "max_tokens": llm.max_tokens,
        "structured_output": llm.structured_output,
        "reasoning_effort": llm.reasoning_effort,
        "input_price": llm.input_price,
        "output_price": llm.output_price,
    }


def find_temperatures(settings: Settings) -> dict[str, float]:
    """The temperatures that *settings* give single prompts, by their mode."""
    return {
        name: value
        for name, value in asdict(settings.llm.temperatures).items()
        if value is not None
    }


def _is_client(given: Any) -> bool:
    if given is None or isinstance(given, type | str):
        return False
    return hasattr(getattr(getattr(given, "chat", None), "completions", None), "create")
