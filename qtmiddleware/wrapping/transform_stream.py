"""Any number of questions transformed, a few at a time, at one pace that all of them share."""

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
from qtmiddleware.retrieval.pipeline import transform_flow
from qtmiddleware.retrieval.request import Request
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.drivers import Bulkhead, ModelOnly, run
from qtmiddleware.runtime.mapping import map_as_done, map_in_order
from qtmiddleware.runtime.pace import Pace
from qtmiddleware.types import Deadline, Transformation

CALL_MS: Final = 60_000
"""How long one call of the model may take where nobody set that: nobody waits for a single answer."""
SPARE: Final = 4
"""Questions under way beyond the calls that may be: one that is asked again lets others go first."""
_NO_LIMIT_MS: Final = 30 * 24 * 3_600_000
_THREADS: Final = 10_000


class Question(Protocol):
    """What is to be transformed."""

    @property
    def text(self) -> str:
        """The question."""

    @property
    def history(self) -> History:
        """What was said before it."""


Q = TypeVar("Q", bound=Question)


@dataclass(frozen=True, slots=True)
class Transformed(Generic[Q]):
    """What came of one *question*.

    *replies* are those of the model: none where the transformation was remembered, shared with an
    equal question or not needed. *failure* is why there is no transformation though one was asked
    for, in one word of a `ModelError`.
    """

    question: Q
    transformation: Transformation
    replies: tuple[Reply, ...] = ()
    failure: str = ""

    @property
    def cost_usd(self) -> float | None:
        """US dollars of the replies, ``None`` where the price is not known."""
        costs = [reply.cost_usd for reply in self.replies]
        return None if None in costs else sum(cost or 0.0 for cost in costs)


def be_patient(config: Config, settings: Settings) -> tuple[Settings, float]:
    """*settings* without a deadline for the whole of a question, and the seconds one call of the model may take.

    The latter are those of ``limits`` as far as anybody set them, else `CALL_MS`.
    """
    limits, own = settings.limits, LimitSettings()
    named = (
        (limits.llm_timeout_ms, own.llm_timeout_ms, "limits.llmTimeoutMs"),
        (limits.deadline_ms, own.deadline_ms, "limits.deadlineMs"),
    )
    given = [
        ms for ms, default, name in named if ms != default or config.origins[name] != "default"
    ]
    patient = replace(limits, llm_timeout_ms=_NO_LIMIT_MS, deadline_ms=_NO_LIMIT_MS)
    return replace(settings, limits=patient), min(given, default=CALL_MS) / 1e3


class TransformStream:
    """Transforms questions with *model*, each call for at most *seconds*, at the *pace* that all of them share.

    *build_request* makes the request of a question. The pace stands in for the model's circuit
    breaker; the budget counts as ever. One stream may be run again and again, by several threads
    too.
    """

    def __init__(
        self, model: GovernedModel, build_request: Callable[[Any], Request], *, seconds: float, settings: Settings,
        pace: Pace, concurrency: int,
    ) -> None:  # fmt: skip
        self._model = GovernedModel(model.inner, settings, Breaker(0, 1.0), meter=model.meter)
        self._build_request = build_request
        self._seconds = seconds
        self._pace = pace
        self._concurrency = concurrency
        self._bulkhead = Bulkhead(_THREADS)

    def run(self, questions: Iterable[Q], *, in_order: bool = False) -> Generator[Transformed[Q]]:
        """What comes of each of *questions*, as it is done, or *in_order*; few of them are in memory at a time.

        Raises `ModelError` where the pace was stopped, when all that was done by then has been
        given. Whoever closes this drops what is under way.
        """
        stream, most = (
            (map_in_order, 2 * self._concurrency) if in_order else (map_as_done, self._concurrency)
        )
        try:
            for transformed in stream(
                self._transform, self._until_stopped(questions), self._bulkhead, most + SPARE
            ):
                if self._pace.error is None or not transformed.failure:
                    yield transformed
                elif in_order:
                    break
            if self._pace.error is not None:
                raise self._pace.error
        except BaseException:
            self._pace.stop()
            raise

    def _until_stopped(self, questions: Iterable[Q]) -> Iterator[Q]:
        for question in questions:
            if self._pace.error is not None:
                return
            yield question

    def _transform(self, question: Q) -> Transformed[Q]:
        model = _PacedModel(self._model, self._pace, self._seconds)
        transformation = run(
            transform_flow(self._build_request(question)), ModelOnly(model, self._bulkhead)
        )
        failure = _find_failure(transformation)
        return Transformed(question, transformation, tuple(model.replies), failure)


class _PacedModel:
    """*inner*, asked for one question at the shared *pace*; *replies* are what it said."""

    can_async = False

    def __init__(self, inner: GovernedModel, pace: Pace, seconds: float) -> None:
        self._inner = inner
        self._pace = pace
        self._seconds = seconds
        self.replies: list[Reply] = []

    @property
    def name(self) -> str:
        return self._inner.name

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        """The reply to *prompt*, however long it takes; raises `ModelError`."""
        reply = self._pace.perform(partial(self._complete, prompt))
        self.replies.append(reply)
        return reply

    def _complete(self, prompt: Prompt) -> Reply:
        return self._inner.complete(prompt, Deadline.after(self._seconds))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """`complete`."""
        return self.complete(prompt, deadline)


def _find_failure(transformation: Transformation) -> str:
    """Why a model that was asked gave nothing; empty where it did, or where what it gave was dropped."""
    reasons = [
        what
        for stage, what in transformation.notes
        if stage.startswith(("transform.", "middleware"))
    ]
    return reasons[-1] if reasons and transformation.is_empty else ""
