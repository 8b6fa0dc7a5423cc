"""Add a circuit breaker and a budget to a language model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack, suppress
from math import ceil
from time import monotonic
from types import TracebackType
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import REASONS, ConfigError, ModelError, build_safe_error, limit_pause
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms.calls import require_seconds_left
from qtmiddleware.providers.llms.defects import convert_defect
from qtmiddleware.providers.llms.openai.prices import Prices
from qtmiddleware.runtime.budget import METER, MOST_TOKENS, Meter, Reservation
from qtmiddleware.runtime.circuit_breaker import PROBE_WAIT_SECONDS, Attempt, Breaker
from qtmiddleware.runtime.threads import run_in_thread
from qtmiddleware.types import Deadline

# Errors that prove that the service works, although this question got no answer.
_REASONS_OF_ANSWERS: Final = frozenset({"empty", "refused", "too_long", "unrecorded"})
# A caller that cancels at its deadline may be this many seconds early.
_EARLY_SECONDS: Final = 0.005


class _NoReply(ModelError):
    """A model returned something other than a `Reply`. The message names only the value's type."""


def is_builtin_model(model: object) -> bool:
    """Return whether the class of *model* belongs to this package.

    Only the error messages of such models are safe to log. Other models may quote the prompt.
    """
    return type(model).__module__.startswith("qtmiddleware.")


class GovernedModel:
    """Calls *inner*, unless the circuit breaker is open or the budget is used up.

    If the breaker is open, a call raises `ModelError` at once, with the reason ``circuit_open``. If
    the budget is used up, the reason is ``over_budget``.

    The breaker counts each call as one of:

    - a success: a reply, or an answer that is refused, empty or too long;
    - a failure: a timeout of a call that had at least half of the time that *settings* allow, or an
      error that this list does not name;
    - neither: a timeout of a call that had less than half of that time, a cancelled call, a bug in
      the user's code, or a lack of threads.

    If the service asks for a pause (429 with Retry-After), the model is not called until the pause
    ends.

    Raises `ConfigError` if the budget limits the cost and the price of *inner* is unknown.
    """

    def __init__(
        self, inner: LanguageModel, settings: Settings, breaker: Breaker, *, meter: Meter = METER
    ) -> None:
        self.inner = inner
        self.can_async: bool = getattr(inner, "can_async", True)
        self.is_builtin = is_builtin_model(inner)
        self._is_loaded = not hasattr(inner, "warm_up")
        self._budget = settings.budget
        self.breaker = breaker
        self.meter = meter
        self._max_tokens = settings.llm.max_tokens
        # A caller with little time, perhaps after a slow search, must not open the breaker for all
        # others. So a late call is a failure only if it had at least half of the time.
        self._min_seconds = settings.limits.model_seconds / 2
        prices = getattr(inner, "prices", None)
        self.prices = prices or Prices(
            inner.name, settings.llm.input_price, settings.llm.output_price
        )
        if self._budget.max_usd is not None and self.prices.compute_cost(1, 1) is None:
            raise ConfigError(
                f"budget.maxUsd needs the price of {inner.name}, which is not known. Set"
                " llm.inputPrice and llm.outputPrice (US dollars per million tokens), or install"
                " the list of OpenAI's prices: pip install 'qtmiddleware[prices]'",
                path="budget.maxUsd",
                value=self._budget.max_usd,
            )

    @property
    def name(self) -> str:
        """The model's name."""
        return self.inner.name

    @property
    def provider(self) -> str:
        """The model's provider; ``""`` if it is unknown."""
        return getattr(self.inner, "provider", "")

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port; ``None`` if they are unknown."""
        return getattr(self.inner, "server", None)

    def find_blocking_error(self) -> ModelError | None:
        """Return the error that a call would raise now, or ``None`` if calls are allowed.

        The reason of the error is ``circuit_open`` or ``over_budget``. This method does not call
        the model.
        """
        rest = self.breaker.wait_seconds
        if rest > 0:
            status = "being tested with one call"
            if rest > PROBE_WAIT_SECONDS:
                status = f"not called for {ceil(rest)} more second{'' if rest <= 1 else 's'}"
            return ModelError(
                "circuit_open", f"{self.name} failed and is {status}", retry_after=rest
            )
        shortage = self.meter.describe_exceeded_limit(self._budget)
        return ModelError("over_budget", shortage) if shortage else None

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        with self._begin_call(prompt, deadline) as call:
            return call.record_reply(self.inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* without blocking the event loop.

        Raises `ModelError` on failure.
        """
        await self._load()
        with self._begin_call(prompt, deadline) as call:
            return call.record_reply(await self.inner.acomplete(prompt, deadline))

    def stream(self, prompt: Prompt, deadline: Deadline) -> Generator[str | Reply, None, None]:
        """Yield the pieces of the reply to *prompt*, then the whole `Reply`.

        A model that cannot stream yields only the `Reply`. Raises `ModelError` on failure.
        """
        inner: Any = self.inner
        if not hasattr(inner, "stream"):
            yield self.complete(prompt, deadline)
            return
        with self._begin_call(prompt, deadline) as call, ExitStack() as stack:
            pieces = inner.stream(prompt, deadline)
            # If the caller stops early, closing the stream ends the connection at once.
            if hasattr(pieces, "close"):
                stack.callback(pieces.close)
            for piece in pieces:
                yield call.record_piece(piece)

    async def astream(
        self, prompt: Prompt, deadline: Deadline
    ) -> AsyncGenerator[str | Reply, None]:
        """Yield the pieces of the reply to *prompt*, then the whole `Reply`.

        The event loop is not blocked. A model that cannot stream yields only the `Reply`. Raises
        `ModelError` on failure.
        """
        inner: Any = self.inner
        if not hasattr(inner, "astream"):
            yield await self.acomplete(prompt, deadline)
            return
        await self._load()
        with self._begin_call(prompt, deadline) as call:
            async with AsyncExitStack() as stack:
                pieces = inner.astream(prompt, deadline)
                if hasattr(pieces, "aclose"):
                    stack.push_async_callback(pieces.aclose)
                async for piece in pieces:
                    yield call.record_piece(piece)

    async def _load(self) -> None:
        """Load what the first call needs, in a thread so that the event loop is not blocked.

        If the caller stops waiting, the loading goes on for a later call.
        """
        if self._is_loaded:
            return
        inner: Any = self.inner
        # The call reports the error, such as a missing key.
        with suppress(Exception):
            await run_in_thread(inner.warm_up)
        self._is_loaded = True

    def _begin_call(self, prompt: Prompt, deadline: Deadline) -> _RunningCall:
        # This raises before the call begins, because a caller without time says nothing about the
        # model.
        seconds = require_seconds_left(deadline)
        attempt = self.breaker.begin_attempt(
            deadline.at, has_enough_time=seconds >= self._min_seconds
        )
        if attempt is None:
            raise self.find_blocking_error() or ModelError(
                "circuit_open", f"{self.name} failed and is being tested with one call"
            )
        try:
            # A token is about four characters of English, or one of Chinese, which takes three
            # bytes.
            prompt_tokens = len((prompt.system + prompt.user).encode("utf-8", "replace")) // 3
            most = min(prompt.max_tokens, self._max_tokens or prompt.max_tokens)
            usd = self.prices.compute_cost(prompt_tokens, most) or 0.0
            reservation = self.meter.reserve_cost(
                self._budget, tokens=prompt_tokens + most, usd=usd
            )
        except BaseException:
            # A half-open breaker allows only one attempt at a time, so this one must end.
            attempt.report_unknown_result()
            raise
        # The time is copied, because the deadline may be cancelled, which changes it.
        return _RunningCall(self, attempt, reservation, deadline.at)

    def __repr__(self) -> str:
        return repr(self.inner)


class _RunningCall:
    """One running model call.

    Reports the call's success or failure to the circuit breaker, and the call's cost to the budget.
    """

    def __init__(
        self, model: GovernedModel, attempt: Attempt, reservation: Reservation, deadline_time: float
    ) -> None:
        self._model = model
        self._attempt = attempt
        self._reservation = reservation
        self._deadline_time = deadline_time
        self._has_output = False

    def record_reply(self, reply: object) -> Reply:
        """Record the call as a success, record the cost of *reply*, and return *reply*.

        Raises `ModelError` if *reply* is not a `Reply`.
        """
        if not isinstance(reply, Reply):
            raise _NoReply(
                "unparsable", f"{self._model.name} must return a Reply, not {type(reply).__name__}"
            )
        self._has_output = True
        # Recorded now, not when the stream closes: some services never close their streams.
        self._attempt.report_success()
        usd, tokens = reply.cost_usd, reply.input_tokens + reply.output_tokens
        if usd is None:
            usd = self._model.prices.compute_cost(reply.input_tokens, reply.output_tokens)
        if usd is None and not 0 < tokens <= MOST_TOKENS:
            # The cost is unknown, so the reserved amount stays.
            tokens, usd = self._reservation.tokens, self._reservation.usd
        self._reservation.record_actual_cost(tokens, usd or 0.0, calls=reply.calls)
        return reply

    def record_piece(self, piece: str | Reply) -> str | Reply:
        """Record that the model sent *piece*, and return *piece*.

        If *piece* is the whole `Reply`, record the call as a success, and record its cost.
        """
        self._has_output = True
        return self.record_reply(piece) if isinstance(piece, Reply) else piece

    def __enter__(self) -> _RunningCall:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if isinstance(error, ModelError):
            self._record_error(error)
            is_safe = self._model.is_builtin and error.reason in REASONS
            # Another model's message may quote the prompt, so it is replaced.
            if not is_safe and not isinstance(error, _NoReply):
                raise build_safe_error(error, self._model.name) from error
        elif error is None:
            self._attempt.report_success()
        elif not isinstance(error, Exception):
            self._record_abandonment()
        elif convert_defect(error, self._model.name, self._model.inner):
            self._attempt.report_unknown_result()
        else:
            self._attempt.report_failure()

    def _record_error(self, error: ModelError) -> None:
        # The request cost nothing, so the reserved amount is released.
        if error.is_free and not self._has_output:
            self._reservation.record_actual_cost(0, 0.0)
        if error.reason == "cancelled":
            self._record_abandonment()
        elif error.reason == "timeout":
            self._attempt.report_timeout()
        elif error.reason in ("failed", "overloaded"):
            self._attempt.report_unknown_result()
        elif error.reason in _REASONS_OF_ANSWERS:
            self._attempt.report_success()
        else:
            self._attempt.report_failure(limit_pause(error.retry_after))

    def _record_abandonment(self) -> None:
        # A caller that gives up at its deadline has seen a timeout.
        if monotonic() >= self._deadline_time - _EARLY_SECONDS:
            self._attempt.report_timeout()
        else:
            self._attempt.report_unknown_result()
