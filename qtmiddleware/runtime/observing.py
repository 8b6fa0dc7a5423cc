"""Report the operations of a query to observers, and its result to retrieval hooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from time import perf_counter, time
from typing import Any, Final, Literal, TypeVar

from qtmiddleware.errors import REASONS, ConfigError, ModelError
from qtmiddleware.protocols import Observer
from qtmiddleware.runtime.concurrency import Ending, on_abandon
from qtmiddleware.runtime.logs import LogSampler, format_error, get_logger
from qtmiddleware.types import Operation

T = TypeVar("T")

logger: Final = get_logger("qtmiddleware")

_ids: Final = count(1)
_sampler: Final = LogSampler()


class Observation:
    """Reports one operation to the observers, as a context manager around it.

    The root has no operation, and is only the parent of others. Without observers, it does nothing.
    """

    __slots__ = ("_began", "_ends", "_result", "observers", "operation")

    def __init__(
        self,
        observers: Sequence[Observer] = (),
        operation: Operation | None = None,
    ) -> None:
        self.operation = operation
        self.observers = observers
        self._began = 0.0
        self._result: Any = None
        self._ends = count()

    def make_child(
        self, kind: Any, name: str = "", model: Any = None, **fields: Any
    ) -> Observation:
        """Return an observation for an operation inside this operation. It has not started yet."""
        if not self.observers:
            return self
        if model is not None:
            fields |= describe_model(model)
        return Observation(
            self.observers, Operation(next(_ids), kind, name, self.operation, **fields)
        )

    def keep_result(self, result: T) -> T:
        """Store *result* as the operation's result, and return it."""
        if self.operation is not None:
            self._result = result
        return result

    def end(self, outcome: Ending | Literal["ok"], reason: str = "", result: Any = None) -> None:
        """Report that the operation ended with *outcome*, unless it has already ended."""
        # Two threads may end an operation: one performs it, the other stops waiting for it. `next`
        # is atomic, so only the first one reports the end.
        if self.operation is None or next(self._ends):
            return
        ended = replace(
            self.operation,
            outcome=outcome,
            reason=reason,
            result=result,
            seconds=perf_counter() - self._began,
        )
        self._notify(ended)

    def _notify(self, operation: Operation) -> None:
        for observer in self.observers:
            report = observer.on_start if operation.outcome == "running" else observer.on_end
            try:
                report(operation)
            except Exception as error:
                name, kind = type(observer).__name__, type(error).__name__
                event = "observer_failed"
                _sampler.log(logger, event, {name: kind}, message="observer failed", error=kind)
                logger.debug("%s", format_error(error), event=event, error=kind)

    def __enter__(self) -> Observation:
        if self.operation is not None:
            self.operation = replace(self.operation, began=time())
            self._began = perf_counter()
            on_abandon(self.end)
            self._notify(self.operation)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        reason = type(error).__name__
        # A user's own model may raise `ModelError` with any reason.
        if isinstance(error, ModelError) and error.reason in REASONS:
            reason = error.reason
        if error is None:
            self.end("ok", result=self._result)
        # asyncio's `CancelledError`, `KeyboardInterrupt`, and the `GeneratorExit` of a closed flow
        # or stream are not subclasses of `Exception`.
        elif reason == "cancelled" or not isinstance(error, Exception):
            self.end("cancelled")
        elif reason == "timeout" or isinstance(error, TimeoutError):
            self.end("late")
        else:
            self.end("failed", reason)


NOT_OBSERVED: Final = Observation()


def make_root_observation(observers: Sequence[Observer]) -> Observation:
    """Return the observation that is the parent of all top-level operations."""
    if not isinstance(observers, Iterable):
        raise ConfigError(f"observers= must be a list of observers, not {type(observers).__name__}")
    for observer in observers:
        if not isinstance(observer, Observer):
            raise ConfigError(
                f"an observer must have on_start and on_end; {type(observer).__name__} lacks them"
            )
    return Observation(tuple(observers))


def describe_model(model: Any) -> dict[str, Any]:
    """Return the fields of an `Operation` that describe a language model, embedder or reranker."""
    # A user's own function has no model's name. A user's own object may have anything.
    name = getattr(model, "model_name", getattr(model, "name", ""))
    names = {"model": name, "provider": getattr(model, "provider", "")}
    return {key: text for key, text in names.items() if isinstance(text, str)}


is_inside_hook: Final[ContextVar[bool]] = ContextVar("is_inside_hook", default=False)
"""Whether a retrieval hook is running, which must not be called for its own retrievals."""
