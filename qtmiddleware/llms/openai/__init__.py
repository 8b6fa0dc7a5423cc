"""OpenAI, and every service that speaks its chat completions, as a language model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final

from qtmiddleware.deadline import Deadline
from qtmiddleware.errors import ModelError
from qtmiddleware.llms.openai.body import Collector, read_reply
from qtmiddleware.llms.openai.clients import Clients, can_stream
from qtmiddleware.llms.openai.dialect import FORMATS, TOKEN_LIMITS, Dialect, Memory, read_refusal
from qtmiddleware.llms.openai.failures import as_model_error
from qtmiddleware.llms.openai.prices import Prices
from qtmiddleware.llms.openai.request import build_request
from qtmiddleware.ports import Prompt, Reply
from qtmiddleware.settings import StructuredOutput

__all__ = ["OpenAIModel"]

MOST_REQUESTS: Final = 4
"""Most requests one prompt may cost while a provider's dialect is being learned."""

LONGEST_WAIT: Final = 600.0
"""The timeout in seconds of a request without a deadline: none is ever sent without one."""

_log = logging.getLogger("qtmiddleware.llms")

_Answer = tuple[Any, int]
"""What came back, as bytes or as the client's own object, and how many retries the SDK needed for it."""


class OpenAIModel:
    """Asks *model* through the ``openai`` client and learns what its provider understands.

    *client* is an ``openai.OpenAI``, an ``openai.AsyncOpenAI``, a pair of both, or ``None``: then clients are made on
    first use, the key from ``OPENAI_API_KEY``, the address from *base_url*, else from ``QTM_LLM_BASE_URL``, else the
    SDK's default. A server of one's own needs no key. Given clients are used as they are and never closed; *can_sync*
    and *can_async* say which kind of call can be served.

    *temperature* and *max_tokens* ``None`` send none. *structured_output* ``auto`` asks for a JSON schema and steps
    down to ``json_object`` and to plain text where that is refused; a refused ``temperature`` or ``max_tokens`` is
    left out likewise. What was refused is remembered as long as this object lives, and one prompt costs at most four
    requests. *input_price* and *output_price* are US dollars for a million tokens, for models the table does not know.

    Every request has the rest of the deadline as its timeout. Asynchronous calls are cancelled at the deadline, so the
    SDK may retry as it likes. In synchronous calls its retries are turned off, because they repeat timeouts and sleep
    as long as the server says without knowing of a deadline. A synchronous call ends at the deadline plus at most one
    read; only a server that trickles headers or the body of an error can hold it longer. `Reply.calls` counts the
    requests of the stepping down and the retries of the one that succeeded.
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = 800,
        structured_output: StructuredOutput = "auto",
        input_price: float | None = None,
        output_price: float | None = None,
    ) -> None:
        self._model = model
        self._clients = Clients(client, base_url)
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._format: str | None = None if structured_output == "auto" else structured_output
        self._prices = Prices.of(model, input_price, output_price)
        self._memory = Memory()

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, host={self._clients.host!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    @property
    def can_sync(self) -> bool:
        """Whether `complete` can be called."""
        return self._clients.can_sync

    @property
    def can_async(self) -> bool:
        """Whether `acomplete` can be called."""
        return self._clients.can_async

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        dialogue = self._dialogue(prompt)
        request = next(dialogue)
        while True:
            try:
                answer = self._send(request, deadline)
            except Exception as error:
                request = dialogue.throw(error)
                continue
            try:
                request = dialogue.send(answer)
            except StopIteration as end:
                return _reply_of(end)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        dialogue = self._dialogue(prompt)
        request = next(dialogue)
        while True:
            try:
                answer = await self._asend(request, deadline)
            except Exception as error:
                request = dialogue.throw(error)
                continue
            try:
                request = dialogue.send(answer)
            except StopIteration as end:
                return _reply_of(end)

    def close(self) -> None:
        """Close the sync client where it is ours; the model stays usable."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close our sync client and our async client of the running event loop; the model stays usable."""
        await self._clients.aclose()

    def _dialogue(self, prompt: Prompt) -> Generator[dict[str, Any], _Answer, Reply]:
        """Yields the requests to send, is sent what came back (or has the error thrown in), returns the reply."""
        guess = Dialect()
        for sent in range(1, MOST_REQUESTS + 1):
            dialect = self._memory.dialect.joined(guess)
            request = self._request(prompt, dialect)
            try:
                raw, retries = yield request
            except ModelError:
                raise
            except Exception as error:
                lower = self._step_down(error, dialect, request)
                if lower is None or sent == MOST_REQUESTS:
                    raise as_model_error(error, f"{self._model} at {self._clients.host}") from error
                guess = lower
                continue
            reply = read_reply(raw)
            self._memory.learn(dialect)
            cost = self._prices.cost(reply.input_tokens, reply.output_tokens)
            return replace(reply, calls=sent + retries, cost_usd=cost)
        raise AssertionError("the last request either returns or raises")  # pragma: no cover

    def _request(self, prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
        limit = TOKEN_LIMITS[dialect.tokens]
        return build_request(
            prompt,
            model=self._model,
            response_format=self._format or FORMATS[dialect.response_format],
            temperature=None if dialect.temperature else self._temperature,
            token_limit={limit: self._max_tokens} if limit and self._max_tokens is not None else {},
        )

    def _step_down(self, error: Exception, dialect: Dialect, request: dict[str, Any]) -> Dialect | None:
        """The dialect to try next after *error*, ``None`` where nothing that was sent can be left out."""
        refusal = read_refusal(error)
        if refusal is None:
            return None
        keys = {"tokens": TOKEN_LIMITS[dialect.tokens]}
        fixed = refusal.part == "response_format" and self._format is not None
        sent = not fixed and keys.get(refusal.part, refusal.part) in request
        lower = dialect.without(refusal.part) if sent else None
        if lower is not None:
            _log.info("%s refused %s; asking with less", self._model, refusal.part)
            if refusal.certain:
                self._memory.learn(lower)
        return lower

    def _send(self, request: dict[str, Any], deadline: Deadline) -> _Answer:
        client = self._clients.sync()
        left = _time_left(deadline)
        completions = client.chat.completions
        if not can_stream(client):
            return completions.create(**request, timeout=left), 0
        collector = Collector(deadline)
        with completions.with_streaming_response.create(**request, timeout=_timeout(left)) as response:
            for chunk in response.iter_bytes():
                collector.add(chunk)
        return collector.body(), _retries_of(response)

    async def _asend(self, request: dict[str, Any], deadline: Deadline) -> _Answer:
        client = await self._clients.asynchronous()
        left = _time_left(deadline)
        async with asyncio.timeout(left):
            completions = client.chat.completions
            if not can_stream(client):
                return await completions.create(**request, timeout=left), 0
            collector = Collector(deadline)
            async with completions.with_streaming_response.create(**request, timeout=_timeout(left)) as response:
                async for chunk in response.iter_bytes():
                    collector.add(chunk)
            return collector.body(), _retries_of(response)


def _timeout(left: float) -> Any:
    import openai

    # Connecting ends a little sooner: a TLS handshake that times out is cleaned up after, one that is cancelled is not.
    return openai.Timeout(left, connect=0.9 * left)


def _time_left(deadline: Deadline) -> float:
    left = min(deadline.remaining(), LONGEST_WAIT)
    if left <= 0:
        # A deadline that was cancelled lies at the beginning of time.
        reason = "timeout" if deadline.at > 0 else "cancelled"
        raise ModelError(reason, "no time was left to ask the language model")
    return left


def _retries_of(response: Any) -> int:
    retries = getattr(response, "retries_taken", 0)
    return retries if isinstance(retries, int) else 0


def _reply_of(end: StopIteration) -> Reply:
    return end.value  # type: ignore[no-any-return]
