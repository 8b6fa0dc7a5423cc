"""Transform any number of questions, a few at a time, with one shared rate limiter."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from qtmiddleware.config import Config
from qtmiddleware.config.settings import LimitSettings, Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.bulk.pace import Pace
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.retrieval.call import Call, validate_query
from qtmiddleware.retrieval.flow import transform as transform_question
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.services import ModelOnly, run
from qtmiddleware.runtime.threads import Bulkhead
from qtmiddleware.types import Deadline, Transformation
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CALL_MS: Final = 60_000
"""The default timeout of a model call, in milliseconds. It is long because nobody waits."""
SPARE: Final = 4
"""How many questions are in progress in addition to one per concurrent model call.

These additional questions call the model while other questions wait for a retry.
"""
Q = TypeVar("Q")

_NO_LIMIT_MS: Final = 30 * 24 * 3_600_000
_THREADS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Transformed(Generic[Q]):
    """The result of transforming one question.

    Attributes:
        question: The question as the caller passed it.
        transformation: The texts that the model wrote; it may be empty.
        replies: The model's replies; empty if no model call was made, because the transformation
            came from the cache or from an equal question, or was not needed.
        failure: The `ModelError` reason if the model call failed; ``""`` otherwise.
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


def transform_stream(
    middleware: QueryMiddleware,
    questions: Iterable[Q],
    *,
    config: Mapping[str, Any] | str | None = None,
    concurrency: int | None = None,
) -> Generator[Transformed[Q]]:
    """Yield each of *questions* with its transformation, as soon as it is done.

    Only a few questions are in memory at a time. A model call may take a minute, unless ``limits``
    sets a shorter time. If the service is busy, questions are retried at a rate that all questions
    share. Closing the generator drops the questions in progress.

    Args:
        middleware: The middleware with the model and the settings.
        questions: Texts, or objects with a ``text`` and optionally a ``history``.
        config: Settings that override the middleware's settings.
        concurrency: The number of model calls at a time; by default ``limits.maxConcurrency``.

    Raises:
        InvalidQuery: A question is blank or too long.
        ModelError: The key is rejected, a budget is spent, or the model does not answer at all for
            ten minutes. Finished results are yielded first.
    """
    engine = middleware.engine.override((config,) if config else ())
    model = engine.model
    patient, call_seconds = separate_call_timeout(engine.config, engine.settings)
    limit = concurrency or patient.limits.max_concurrency
    # The breaker is off, because the pace decides when to call again after a failure.
    governed = GovernedModel(model.inner, patient, Breaker(0, 1.0), meter=model.meter)
    pace, bulkhead = Pace(limit), Bulkhead(_THREADS)
    done: SimpleQueue[Transformed[Q] | BaseException] = SimpleQueue()

    def transform(question: Q) -> None:
        paced = _PacedModel(governed, pace, call_seconds)
        try:
            text = validate_query(getattr(question, "text", question), "query")
            history = read_history(getattr(question, "history", None))
            call = Call(
                original=text,
                history=history.messages,
                history_problem=history.problem,
                settings=patient,
                learned=Learned(),
                engine=engine,
                model=paced,
                observation=engine.observation,
            )
            transformation = run(partial(transform_question, call), ModelOnly(paced, bulkhead))
            failure = _find_failure_reason(transformation)
            done.put(Transformed(question, transformation, tuple(paced.replies), failure))
        # In this thread nobody else would notice an interrupt or exit.
        except BaseException as error:
            done.put(error)

    def take_result() -> Iterable[Transformed[Q]]:
        result = done.get()
        if isinstance(result, BaseException):
            raise result
        # Questions that failed because all calls were stopped are not results.
        return () if pace.error is not None and result.failure else (result,)

    under_way = 0
    try:
        for question in questions:
            if pace.error is not None:
                break
            bulkhead.start(partial(copy_context().run, transform, question))
            under_way += 1
            if under_way >= limit + SPARE:
                yield from take_result()
                under_way -= 1
        for _ in range(under_way):
            yield from take_result()
        if pace.error is not None:
            raise pace.error
    finally:
        # Also if the caller closes the generator: calls that wait for a retry must not go on.
        pace.stop(ModelError("cancelled", "stopped"))


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


class _PacedModel:
    """Calls the model for one question, at the rate of the pace, and keeps the replies."""

    can_async = False

    def __init__(self, inner: GovernedModel, pace: Pace, call_seconds: float) -> None:
        self.name, self.provider, self.server = inner.name, inner.provider, inner.server
        self.relevance = inner.relevance
        self.replies: list[Reply] = []
        self._inner, self._pace, self._call_seconds = inner, pace, call_seconds

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        # The time counts from the call itself, not from the wait for the rate limiter.
        reply = self._pace.call(
            lambda: self._inner.complete(prompt, Deadline.after(self._call_seconds))
        )
        self.replies.append(reply)
        return reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)

    def find_blocking_error(self) -> None:
        """Return ``None``: the pace decides when to call."""


def _find_failure_reason(transformation: Transformation) -> str:
    """Return why the model call failed; ``""`` if it did not or *transformation* has texts."""
    reasons = [
        detail
        for stage, detail in transformation.notes
        if stage.startswith(("transform.", "middleware"))
    ]
    return reasons[-1] if reasons and transformation.is_empty else ""
