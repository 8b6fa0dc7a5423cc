"""A language model that is left alone while it fails and asked no more than its budget allows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack
from time import monotonic
from types import TracebackType
from typing import Any, Final

from qtmiddleware.breaker import Attempt, Breaker
from qtmiddleware.deadline import Deadline
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.llms.openai.prices import Prices
from qtmiddleware.ports import LanguageModel, Prompt, Reply
from qtmiddleware.settings import Settings
from qtmiddleware.spending import METER, Meter, Reservation

# What says that the service is there and at work, though this question got no answer.
_ANSWERED: Final = frozenset({"empty", "refused", "too_long", "unrecorded"})
# Nothing is charged for these.
_FREE: Final = frozenset({"unauthorized", "rate_limited", "unavailable", "rejected", "too_long", "unrecorded"})
# A caller that cancels at its deadline is a little early at times.
_NEARLY: Final = 0.005


class GovernedModel:
    """*inner* behind a circuit breaker and a budget.

    Raises `ModelError` ``circuit_open`` while it is left alone and ``over_budget`` where a budget has no room, without
    asking. Refusals count as answers, cancelled calls as neither; everything else that fails or is late is a failure,
    and one that says when to come back (429 with Retry-After) is left alone until then. Raises `ConfigError` where
    money is limited and *inner* has no known price.
    """

    def __init__(self, inner: LanguageModel, settings: Settings, breaker: Breaker, *, meter: Meter = METER) -> None:
        self.inner = inner
        self.can_sync: bool = getattr(inner, "can_sync", True)
        self.can_async: bool = getattr(inner, "can_async", True)
        self._budget = settings.budget
        self._breaker = breaker
        self._meter = meter
        self._most = settings.llm.max_tokens
        self._prices = Prices.of(inner.name, settings.llm.input_price, settings.llm.output_price)
        if self._budget.max_usd is not None and self._prices.cost(1, 1) is None:
            raise ConfigError(
                f"budget.maxUsd needs the price of {inner.name}, which is not known here; set llm.inputPrice and"
                " llm.outputPrice (US dollars for a million tokens)",
                path="budget.maxUsd",
                value=self._budget.max_usd,
            )

    @property
    def name(self) -> str:
        """The model's name."""
        return self.inner.name

    def reason_to_wait(self) -> ModelError | None:
        """Why a call made now would be refused without asking; ``None`` where it would be made."""
        rest = self._breaker.rest
        if rest > 0:
            return ModelError("circuit_open", f"{self.name} failed and is left alone for {rest:.0f} more seconds")
        lacking = self._meter.lacks(self._budget)
        return ModelError("over_budget", lacking) if lacking else None

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        with self._call(prompt, deadline) as call:
            reply = self.inner.complete(prompt, deadline)
            call.answered(reply)
            return reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        with self._call(prompt, deadline) as call:
            reply = await self.inner.acomplete(prompt, deadline)
            call.answered(reply)
            return reply

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[str | Reply, None, None]:
        """The pieces of the reply and, last, the whole; a model that cannot stream gives the whole alone."""
        inner: Any = self.inner
        if not hasattr(inner, "stream"):
            yield self.complete(prompt, deadline)
            return
        with self._call(prompt, deadline) as call, ExitStack() as stack:
            pieces = inner.stream(prompt, deadline)
            if hasattr(pieces, "close"):
                stack.callback(pieces.close)
            for piece in pieces:
                call.answered(piece)
                yield piece

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncGenerator[str | Reply, None]:
        """`stream`, to be awaited."""
        inner: Any = self.inner
        if not hasattr(inner, "astream"):
            yield await self.acomplete(prompt, deadline)
            return
        with self._call(prompt, deadline) as call:
            async with AsyncExitStack() as stack:
                pieces = inner.astream(prompt, deadline)
                if hasattr(pieces, "aclose"):
                    stack.push_async_callback(pieces.aclose)
                async for piece in pieces:
                    call.answered(piece)
                    yield piece

    def _call(self, prompt: Prompt, deadline: Deadline) -> _Call:
        attempt = self._breaker.attempt(deadline.at)
        if attempt is None:
            raise self.reason_to_wait() or ModelError("circuit_open", f"{self.name} failed and is being tried again")
        try:
            # A token is about four characters of English and one of Chinese, which takes three bytes.
            asked = len((prompt.system + prompt.user).encode("utf-8", "replace")) // 3
            most = min(prompt.max_tokens, self._most or prompt.max_tokens)
            usd = self._prices.cost(asked, most) or 0.0
            reserved = self._meter.reserve(self._budget, tokens=asked + most, usd=usd)
        except BaseException:
            attempt.abandoned()
            raise
        return _Call(attempt, reserved, self._prices, deadline.at)

    def __repr__(self) -> str:
        return repr(self.inner)


class _Call:
    """One call under way, which tells breaker and meter how it ended."""

    def __init__(self, attempt: Attempt, reserved: Reservation, prices: Prices, until: float) -> None:
        self._attempt = attempt
        self._reserved = reserved
        self._prices = prices
        # A deadline can be cancelled; when the call would have been late stays.
        self._until = until

    def answered(self, piece: object) -> None:
        """Where *piece* is the whole reply, what that cost is known from here on."""
        if not isinstance(piece, Reply):
            return
        usd = piece.cost_usd
        if usd is None:
            usd = self._prices.cost(piece.input_tokens, piece.output_tokens)
        if usd is not None or piece.input_tokens or piece.output_tokens:
            self._reserved.settle(piece.input_tokens + piece.output_tokens, usd or 0.0, calls=piece.calls)

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, ModelError):
            self._failed(error)
        elif error is None:
            self._attempt.succeeded()
        elif isinstance(error, Exception):
            self._attempt.failed()
        else:
            self._given_up()

    def _failed(self, error: ModelError) -> None:
        if error.reason in _FREE:
            self._reserved.settle(0, 0.0)
        if error.reason == "cancelled":
            self._given_up()
        elif error.reason in _ANSWERED:
            self._attempt.succeeded()
        else:
            self._attempt.failed(error.retry_after)

    def _given_up(self) -> None:
        if monotonic() >= self._until - _NEARLY:
            self._attempt.failed()
        else:
            self._attempt.abandoned()
