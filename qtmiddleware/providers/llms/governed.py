"""Add a circuit breaker and a budget to a language model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from math import ceil
from typing import Any, Final, TypeVar

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import (
    REASONS,
    ConfigError,
    ModelError,
    is_raised_by_package,
    limit_pause,
)
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.errors import convert_function_error, require_seconds_left
from qtmiddleware.providers.llms.prices import Prices
from qtmiddleware.retrieval.learned import ReplyRelevance
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.io import on_abandon
from qtmiddleware.runtime.spending import METER, MOST_TOKENS, Meter, Reservation
from qtmiddleware.types import Deadline

T = TypeVar("T")

# Errors that prove that the service works, although this question got no answer.
_REASONS_OF_ANSWERS: Final = frozenset({"empty", "refused", "too_long", "unrecorded"})
# Errors that say nothing about the service.
_REASONS_OF_CALLERS: Final = frozenset({"cancelled", "failed", "overloaded", "over_budget"})


def is_builtin_model(model: object) -> bool:
    """Return whether the class of *model* belongs to this package.

    Only the error messages of such models are safe to log. Other models may quote the prompt.
    """
    return type(model).__module__.startswith("qtmiddleware.")


def _has_failed(reason: str) -> bool | None:
    return None if reason in _REASONS_OF_CALLERS else reason not in _REASONS_OF_ANSWERS


class GovernedModel:
    """Calls *inner*, unless the circuit breaker is open or the budget is used up.

    A call that is not made raises `ModelError` ``circuit_open`` or ``over_budget``. The breaker
    counts a refused, empty or too long answer as a success. It does not count a timeout of a call
    that had less than half of the time that *settings* allow, a cancelled call, a bug in the user's
    code, or a lack of threads. All other errors are failures.

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
        self.inner = inner
        self.name = inner.name
        """The model's name."""
        self.provider: str = getattr(inner, "provider", "")
        """The model's provider; ``""`` if it is unknown."""
        self.server: tuple[str, int] | None = getattr(inner, "server", None)
        """The server's host and port; ``None`` if they are unknown."""
        self.can_async: bool = getattr(inner, "can_async", True)
        self._budget = settings.budget
        self.breaker = breaker
        self.meter = meter
        self.relevance = relevance or ReplyRelevance()
        """How much of their questions the latest replies keep."""
        self._max_tokens = settings.llm.max_tokens
        # A caller with little time, perhaps after a slow search, must not open the breaker for all
        # others. So a late call is a failure only if it had at least half of the time.
        self._min_seconds = settings.limits.model_seconds / 2
        prices = Prices(inner.name, settings.llm.input_price, settings.llm.output_price)
        self.prices: Prices = getattr(inner, "prices", None) or prices
        if self._budget.max_usd is not None and self.prices.compute_cost(1, 1) is None:
            raise ConfigError(
                f"budget.maxUsd needs the price of {inner.name}: set llm.inputPrice and"
                " llm.outputPrice, or run: pip install 'qtmiddleware[prices]'",
                path="budget.maxUsd",
                value=self._budget.max_usd,
            )

    def __repr__(self) -> str:
        return repr(self.inner)

    def find_blocking_error(self) -> ModelError | None:
        """Return the error ``circuit_open`` or ``over_budget`` that a call would raise now."""
        if (rest := self.breaker.wait_seconds) > 0:
            message = f"{self.name} failed and is not called for {ceil(rest)} s"
            return ModelError("circuit_open", message, retry_after=rest)
        return self.meter.find_exceeded_limit(self._budget)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        with self._govern_call(prompt, deadline) as record:
            return record(self._require_reply(self.inner.complete(prompt, deadline)))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* as `complete` does, without blocking the event loop."""
        with self._govern_call(prompt, deadline) as record:
            return record(self._require_reply(await self.inner.acomplete(prompt, deadline)))

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[str | Reply, None, None]:
        """Yield the pieces of the reply to *prompt*, then the whole `Reply`.

        A model that cannot stream yields only the `Reply`. Raises `ModelError` on failure.
        """
        inner: Any = self.inner
        if not hasattr(inner, "stream"):
            yield self.complete(prompt, deadline)
            return
        with self._govern_call(prompt, deadline) as record:
            pieces = inner.stream(prompt, deadline)
            try:
                for piece in pieces:
                    yield record(piece)
            finally:
                # If the caller stops early, this ends the connection at once.
                if hasattr(pieces, "close"):
                    pieces.close()

    async def astream(
        self, prompt: Prompt, deadline: Deadline
    ) -> AsyncGenerator[str | Reply, None]:
        """Yield pieces and the `Reply` as `stream` does, without blocking the event loop."""
        inner: Any = self.inner
        if not hasattr(inner, "astream"):
            yield await self.acomplete(prompt, deadline)
            return
        with self._govern_call(prompt, deadline) as record:
            pieces = inner.astream(prompt, deadline)
            try:
                async for piece in pieces:
                    yield record(piece)
            finally:
                if hasattr(pieces, "aclose"):
                    await pieces.aclose()

    def _require_reply(self, reply: object) -> Reply:
        if not isinstance(reply, Reply):
            message = f"{self.name} must return a Reply, not {type(reply).__name__}"
            raise ModelError("unparsable", message)
        return reply

    @contextmanager
    def _govern_call(
        self, prompt: Prompt, deadline: Deadline
    ) -> Generator[Callable[[T], T], None, None]:
        """Report a call's result to the breaker, and its cost to the budget.

        Yields a function that records a piece of the output and returns it.
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
            lambda ending: attempt.end(
                has_failed=timeout_has_failed if ending == "late" else None,
            )
        )
        reservation: Reservation | None = None
        has_output = False

        def record(piece: T) -> T:
            nonlocal has_output, reservation
            has_output = True
            if isinstance(piece, Reply) and reservation is not None:
                self._record_cost(reservation, piece)
                reservation = None
            return piece

        try:
            reservation = self._reserve_cost(prompt)
            yield record
        except Exception as error:
            failure = self._convert_error(error)
            # The request cost nothing, so the reserved amount is released.
            if failure.is_free and not has_output and reservation is not None:
                reservation.record_actual_cost(0, 0.0)
            has_failed = _has_failed(failure.reason)
            if failure.reason == "timeout":
                has_failed = timeout_has_failed
            attempt.end(has_failed=has_failed, pause_seconds=limit_pause(failure.retry_after))
            if failure is error:
                raise
            raise failure from error
        except BaseException:
            attempt.end(has_failed=None)
            raise
        attempt.end(has_failed=False)

    def _convert_error(self, error: Exception) -> ModelError:
        is_known = isinstance(error, ModelError) and error.reason in REASONS
        if is_known and is_raised_by_package(error):
            return error  # type: ignore[return-value]
        # The message of a user's own model may quote the prompt, so it is replaced.
        return convert_function_error(error, self.name)

    def _reserve_cost(self, prompt: Prompt) -> Reservation:
        # A token is about four characters of English, or one of Chinese, which takes three bytes.
        prompt_tokens = len((prompt.system + prompt.user).encode("utf-8", "replace")) // 3
        most = min(prompt.max_tokens, self._max_tokens or prompt.max_tokens)
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
