"""Transform any number of questions, a few at a time, with one shared rate limiter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from qtmiddleware.config import Config
from qtmiddleware.config.settings import LimitSettings, Settings
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.retrieval.history import History
from qtmiddleware.retrieval.pipeline import build_transform_flow
from qtmiddleware.retrieval.request import Request
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.drivers import Bulkhead, ModelOnly, run
from qtmiddleware.runtime.mapping import map_as_completed, map_in_order
from qtmiddleware.runtime.pace import Pace
from qtmiddleware.types import Deadline, Transformation

CALL_MS: Final = 60_000
"""The default timeout of a model call, in milliseconds.

It is long because nobody waits for a single reply.
"""
SPARE: Final = 4
"""How many questions are in progress in addition to one per concurrent model call.

These additional questions call the model while other questions wait for a retry.
"""
_NO_LIMIT_MS: Final = 30 * 24 * 3_600_000
_THREADS: Final = 10_000


class Question(Protocol):
    """The interface of a question to transform: a text, and the conversation before it."""

    @property
    def text(self) -> str:
        """The question's text."""

    @property
    def history(self) -> History:
        """The conversation before the question."""


Q = TypeVar("Q", bound=Question)


@dataclass(frozen=True, slots=True)
class Transformed(Generic[Q]):
    """The result of transforming one question.

    Attributes:
        question: the question as the caller passed it.
        transformation: the texts that the model wrote; it may be empty.
        replies: the model's replies; empty if no model call was made, because the transformation
            came from the cache or from an equal question, or was not needed.
        failure: the `ModelError` reason if the model call failed; ``""`` otherwise.
    """

    question: Q
    transformation: Transformation
    replies: tuple[Reply, ...] = ()
    failure: str = ""

    @property
    def cost_usd(self) -> float | None:
        """The cost of the replies in US dollars; ``None`` if a price is not known."""
        costs = [reply.cost_usd for reply in self.replies]
        return None if None in costs else sum(cost or 0.0 for cost in costs)


def separate_call_timeout(config: Config, settings: Settings) -> tuple[Settings, float]:
    """Return *settings* without deadlines, and the timeout of each model call in seconds.

    The timeout is the smaller of ``limits.llmTimeoutMs`` and ``limits.deadlineMs``. Limits that the
    user did not set are ignored. If the user set neither of the two, the timeout is `CALL_MS`.
    """
    limits, defaults = settings.limits, LimitSettings()
    limits_with_names = (
        (limits.llm_timeout_ms, defaults.llm_timeout_ms, "limits.llmTimeoutMs"),
        (limits.deadline_ms, defaults.deadline_ms, "limits.deadlineMs"),
    )
    set_ms = [
        ms
        for ms, default, name in limits_with_names
        if ms != default or config.origins[name] != "default"
    ]
    lifted = replace(limits, llm_timeout_ms=_NO_LIMIT_MS, deadline_ms=_NO_LIMIT_MS)
    return replace(settings, limits=lifted), min(set_ms, default=CALL_MS) / 1e3


class TransformStream:
    """Transforms a stream of questions with a model, within the settings' budget.

    Several threads may use one stream, and each thread may use it more than once.

    Args:
        model: the model to call.
        build_request: returns the request for a question.
        call_timeout_seconds: the timeout of each model call, in seconds.
        settings: the settings without deadlines, as `separate_call_timeout` returns them.
        pace: the rate limiter for the calls. It replaces the model's circuit breaker.
        concurrency: the number of model calls under way at once.
    """

    def __init__(
        self, model: GovernedModel, build_request: Callable[[Any], Request], *,
        call_timeout_seconds: float, settings: Settings, pace: Pace, concurrency: int,
    ) -> None:  # fmt: skip
        # The breaker is off, because the pace decides when to call again after a failure.
        self._model = GovernedModel(model.inner, settings, Breaker(0, 1.0), meter=model.meter)
        self._build_request = build_request
        self._call_timeout_seconds = call_timeout_seconds
        self._pace = pace
        self._concurrency = concurrency
        self._bulkhead = Bulkhead(_THREADS)

    def transform_questions(
        self, questions: Iterable[Q], *, in_order: bool = False
    ) -> Generator[Transformed[Q]]:
        """Yield one result per question, in order if *in_order* is true, else as soon as possible.

        Only a few questions are in memory at a time. Closing the generator drops the questions in
        progress.

        Raises:
            ModelError: if an error stopped the rate limiter. Finished results are yielded first.
        """
        stream, limit = (
            (map_in_order, 2 * self._concurrency)
            if in_order
            else (map_as_completed, self._concurrency)
        )
        try:
            for transformed in stream(
                self._transform_question,
                self._iterate_questions_until_error(questions),
                self._bulkhead,
                limit + SPARE,
            ):
                # After the error, questions that failed because of it are not results. Others that
                # were already under way may still succeed.
                if self._pace.error is None or not transformed.failure:
                    yield transformed
                elif in_order:
                    break
            if self._pace.error is not None:
                raise self._pace.error
        except BaseException:
            # Also if the caller closes the generator: calls that wait for a retry must not go on.
            self._pace.stop_all_calls()
            raise

    def _iterate_questions_until_error(self, questions: Iterable[Q]) -> Iterator[Q]:
        for question in questions:
            if self._pace.error is not None:
                return
            yield question

    def _transform_question(self, question: Q) -> Transformed[Q]:
        model = _PacedModel(self._model, self._pace, self._call_timeout_seconds)
        transformation = run(
            build_transform_flow(self._build_request(question)), ModelOnly(model, self._bulkhead)
        )
        failure = _find_failure_reason(transformation)
        return Transformed(question, transformation, tuple(model.replies), failure)


class _PacedModel:
    """Forwards one question's model calls to an inner model, at a rate that all questions share.

    Attributes:
        replies: the inner model's replies so far.
    """

    can_async = False

    def __init__(self, inner_model: GovernedModel, pace: Pace, call_timeout_seconds: float) -> None:
        self._inner = inner_model
        self._pace = pace
        self._call_timeout_seconds = call_timeout_seconds
        self.replies: list[Reply] = []

    @property
    def name(self) -> str:
        """The inner model's name."""
        return self._inner.name

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        """Return the reply to *prompt*. The deadline is ignored. Raises `ModelError`."""
        reply = self._pace.call_with_retries(partial(self._call_inner_model, prompt))
        self.replies.append(reply)
        return reply

    def _call_inner_model(self, prompt: Prompt) -> Reply:
        # The time counts from the call itself, not from the wait for the rate limiter.
        return self._inner.complete(prompt, Deadline.after(self._call_timeout_seconds))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the inner model's reply to *prompt*, as `complete` does."""
        return self.complete(prompt, deadline)


def _find_failure_reason(transformation: Transformation) -> str:
    """Return why the model call failed, according to the notes of *transformation*.

    Returns ``""`` if no call failed, or if *transformation* is not empty.
    """
    reasons = [
        detail
        for stage, detail in transformation.notes
        if stage.startswith(("transform.", "middleware"))
    ]
    return reasons[-1] if reasons and transformation.is_empty else ""
