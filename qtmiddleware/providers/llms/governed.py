"""Add a circuit breaker and a budget to a language model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial
from math import ceil
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError, limit_pause
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.errors import convert_function_error, require_seconds_left
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.llms.replies import Prices
from qtmiddleware.retrieval.learned import ReplyRelevance
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.concurrency import on_abandon
from qtmiddleware.runtime.spending import METER, MOST_TOKENS, Meter, Reservation
from qtmiddleware.types import Deadline

# Errors that prove that the service works, although this question got no answer.
_OF_ANSWERS: Final = frozenset({"empty", "refused", "too_long", "unrecorded"})
# Errors that say nothing about the service.
_OF_CALLERS: Final = frozenset({"cancelled", "failed", "overloaded", "over_budget"})


class GovernedModel:
    """Calls *inner*, unless the circuit breaker is open or the budget is used up.

    A call that is not made raises `ModelError` ``circuit_open`` or ``over_budget``. The breaker
    counts a refused or empty answer, and a too long question, as a success. It does not count a
    timeout of a call that had less than half of the time that *settings* allow, a cancelled call, a
    bug in the user's code, or a lack of threads. All other errors are failures.

    Raises `ConfigError` if the budget limits the cost and the price of *inner* is unknown.
    """

    def __init__(
        self,
        inner: LanguageModel,
        settings: Settings,
        breaker: Breaker,
        *,
        meter: Meter = METER,
        relevance: ReplyRelevance | None = None,
    ) -> None:
        self.inner: Any = inner
        self.name = inner.name
        self.provider: str = getattr(inner, "provider", "")
        self.can_async: bool = getattr(inner, "can_async", True)
        self._budget = settings.budget
        self.breaker = breaker
        self.meter = meter
        self.relevance = relevance or ReplyRelevance()
        """How much of their questions the latest replies keep."""
        self._max_tokens = settings.llm.max_tokens
        self._thinking_tokens = inner.thinking_tokens if isinstance(inner, OpenAIModel) else 0
        # A caller with little time, perhaps after a slow search, must not open the breaker for all
        # others. So a late call is a failure only if it had at least half of the time.
        self._min_seconds = settings.limits.model_seconds / 2
        self.prices = Prices(inner.name, settings.llm.input_price, settings.llm.output_price)
        if self._budget.max_usd is not None and self.prices.compute_cost(1, 1) is None:
            raise ConfigError(
                f"budget.maxUsd needs the price of {inner.name}: set llm.inputPrice and"
                " llm.outputPrice, or run: pip install 'qtmiddleware[prices]'",
                path="budget.maxUsd",
                value=self._budget.max_usd,
            )

    def find_blocking_error(self) -> ModelError | None:
        """Return the error ``circuit_open`` or ``over_budget`` that a call would raise now."""
        if (rest := self.breaker.wait_seconds) > 0:
            message = f"{self.name} failed and is not called for {ceil(rest)} s"
            return ModelError("circuit_open", message, retry_after=rest)
        return self.meter.find_exceeded_limit(self._budget)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        with self._govern_call(prompt, deadline) as keep:
            reply: Reply = keep(self.inner.complete(prompt, deadline))
            return reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* as `complete` does, without blocking the event loop."""
        with self._govern_call(prompt, deadline) as keep:
            reply: Reply = keep(await self.inner.acomplete(prompt, deadline))
            return reply

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[str | Reply, None, None]:
        """Yield the pieces of the reply to *prompt*, then the whole `Reply`.

        A model that cannot stream yields only the `Reply`. Raises `ModelError` on failure.
        """
        if not hasattr(self.inner, "stream"):
            yield self.complete(prompt, deadline)
            return
        with self._govern_call(prompt, deadline) as keep:
            for piece in self.inner.stream(prompt, deadline):
                yield keep(piece)

    async def astream(
        self, prompt: Prompt, deadline: Deadline
    ) -> AsyncGenerator[str | Reply, None]:
        """Yield pieces and the `Reply` as `stream` does, without blocking the event loop."""
        if not hasattr(self.inner, "astream"):
            yield await self.acomplete(prompt, deadline)
            return
        with self._govern_call(prompt, deadline) as keep:
            pieces = self.inner.astream(prompt, deadline)
            # An iterator that is no generator cannot be closed.
            async with aclosing(pieces) if hasattr(pieces, "aclose") else nullcontext():
                async for piece in pieces:
                    yield keep(piece)

    @contextmanager
    def _govern_call(self, prompt: Prompt, deadline: Deadline) -> Generator[Any, None, None]:
        """Report a call's result to the breaker, and its cost to the budget.

        Yields a function, to which the caller passes what the model returns, at last the reply. It
        returns the same, or raises `ModelError`.
        """
        # A timeout is a failure only if the model had enough time. Otherwise it says nothing. A
        # caller without any time gets an error here.
        has_enough_time = require_seconds_left(deadline) >= self._min_seconds
        timeout_has_failed = True if has_enough_time else None
        attempt = self.breaker.begin_attempt()
        if attempt is None:
            raise self.find_blocking_error() or ModelError(
                "circuit_open", "the test call just ended"
            )
        # A call that hangs in a thread reports nothing itself.
        on_abandon(
            lambda ending: attempt.end(has_failed=timeout_has_failed if ending == "late" else None)
        )
        output: list[Any] = []
        reservation: Reservation | None = None
        has_failed: bool | None = None
        pause = None
        try:
            reservation = self._reserve_cost(prompt)
            yield partial(_keep_piece, output, self.name)
            if not output or not isinstance(output[-1], Reply):
                raise ModelError("unparsable", f"{self.name} must return a Reply at the end")
            has_failed = False
        except Exception as error:
            failure = convert_function_error(error, self.name)
            # The request cost nothing, so the reserved amount is released.
            if failure.is_free and not output and reservation is not None:
                reservation.record_actual_cost(0, 0.0)
            pause = limit_pause(failure.retry_after)
            if failure.reason == "timeout":
                has_failed = timeout_has_failed
            elif failure.reason not in _OF_CALLERS:
                has_failed = failure.reason not in _OF_ANSWERS
            if failure is error:
                raise
            raise failure from error
        finally:
            attempt.end(has_failed=has_failed, pause_seconds=pause)
            if reservation is not None and output and isinstance(output[-1], Reply):
                self._record_cost(reservation, output[-1])

    def _reserve_cost(self, prompt: Prompt) -> Reservation:
        # A token is about four characters of English, or one of Chinese, which takes three bytes.
        prompt_tokens = len((prompt.system + prompt.user).encode("utf-8", "replace")) // 3
        most = min(prompt.max_tokens, self._max_tokens or prompt.max_tokens)
        most += self._thinking_tokens
        usd = self.prices.compute_cost(prompt_tokens, most) or 0.0
        return self.meter.reserve_cost(self._budget, tokens=prompt_tokens + most, usd=usd)

    def _record_cost(self, reservation: Reservation, reply: Reply) -> None:
        usd = reply.cost_usd
        tokens = reply.input_tokens + reply.output_tokens
        if usd is None:
            usd = self.prices.compute_cost(reply.input_tokens, reply.output_tokens)
        # If the cost is unknown, the reserved amount stays.
        if usd is not None or 0 < tokens <= MOST_TOKENS:
            reservation.record_actual_cost(tokens, usd or 0.0)


def _keep_piece(output: list[Any], model_name: str, piece: Any) -> Any:
    """Add *piece* to *output*, and return it; raise `ModelError` if it is no text or `Reply`."""
    # OpenAI's first and last chunks hold no text.
    if piece is None:
        return ""
    text = piece.text if isinstance(piece, Reply) else piece
    if not isinstance(text, str):
        kind = type(text).__name__
        raise ModelError("unparsable", f"{model_name} must return text, not {kind}")
    output.append(piece)
    return piece
