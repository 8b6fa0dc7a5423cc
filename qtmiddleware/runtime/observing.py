"""Tells observers of the operations of a flow, and hooks of the retrieval that came of it."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import count
from time import perf_counter, time
from typing import Any, Final, Literal, TypeVar

from qtmiddleware.errors import REASONS, ConfigError, ModelError
from qtmiddleware.protocols import Observer, Reply, RetrievalHook
from qtmiddleware.runtime.background_loop import is_async, run_in_background_loop
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.runtime.threads import Bulkhead, in_thread
from qtmiddleware.types import Answer, Operation, Retrieval

T = TypeVar("T")
Ending = Literal["failed", "late", "cancelled"]

logger: Final = get_logger("qtmiddleware")

_ids: Final = count(1)


class _Guarded:
    """An observer that raises nothing; what it raises first is logged."""

    def __init__(self, observer: Observer) -> None:
        if not isinstance(observer, Observer):
            raise ConfigError(
                f"an observer must have on_start and on_end; {type(observer).__name__} lacks them"
            )
        self._observer = observer
        self._has_failed = False

    def tell(self, operation: Operation) -> None:
        """Tell of the start of *operation*, or of its end where it has one."""
        tell = self._observer.on_start if operation.outcome == "running" else self._observer.on_end
        try:
            tell(operation)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                name = type(self._observer).__name__
                about: dict[str, Any] = {
                    "event": "observer_failed",
                    "observer": name,
                    "error": type(error).__name__,
                }
                logger.warning("the observer %s failed: %s", name, type(error).__name__, **about)
                logger.debug("the observer %s failed: %s", name, format_error(error), **about)


class Observation:
    """One operation, told to observers when it starts and, once, when it ends; a context manager for what it does.

    Without observers nothing is made or told. Where it has none of its own, *operation* is the
    ground others stand on.
    """

    __slots__ = ("_began", "_observers", "_result", "_running", "operation")

    def __init__(
        self, observers: tuple[_Guarded, ...] = (), operation: Operation | None = None
    ) -> None:
        self.operation = operation
        self._observers = observers
        self._began = 0.0
        self._result: Any = None
        # Holds the operation while it runs; whoever takes it out tells its end.
        self._running: list[Operation] = []

    @property
    def is_observed(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._observers)

    def child(self, kind: Any, name: str = "", **known: Any) -> Observation:
        """An operation within this one, which has not started."""
        if not self._observers:
            return self
        return Observation(
            self._observers, Operation(next(_ids), kind, name, self.operation, **known)
        )

    def keep(self, result: T) -> T:
        """Returns *result*, which is what came of the operation."""
        if self.operation is not None:
            self._result = result
        return result

    def end(self, outcome: Ending) -> None:
        """Tell that the operation has ended so, if it runs."""
        self._end(outcome=outcome)

    def __enter__(self) -> Observation:
        if self.operation is not None and not self._running:
            self.operation = replace(self.operation, began=time())
            self._began = perf_counter()
            self._running.append(self.operation)
            for observer in self._observers:
                observer.tell(self.operation)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if not self._running:
            return
        if error is None:
            self._end(outcome="ok", result=self._result, counts=_count(self._result))
        else:
            outcome = _read_outcome(error)
            self._end(outcome=outcome, reason=_read_reason(error) if outcome == "failed" else "")

    def _end(self, *, counts: dict[str, int] | None = None, **ending: Any) -> None:
        # Two threads may be here: the one that performs the operation and the one that gives it up.
        with suppress(IndexError):
            running = self._running.pop()
            seconds = perf_counter() - self._began
            ended = replace(
                running, seconds=seconds, counts={**running.counts, **(counts or {})}, **ending
            )
            for observer in self._observers:
                observer.tell(ended)


NOT_OBSERVED: Final = Observation()


def describe_model(model: Any) -> dict[str, Any]:
    """Return the fields of an `Operation` that say which language model, embedder or reranker is asked, and where.

    A function of the user's has the name of a function, not that of a model, and says so by an
    empty ``model_name``.
    """
    name = getattr(model, "model_name", None)
    named = {
        "model": getattr(model, "name", "") if name is None else name,
        "provider": getattr(model, "provider", ""),
    }
    known: dict[str, Any] = {field: text for field, text in named.items() if isinstance(text, str)}
    # An object of the user's may call anything its server.
    match getattr(model, "server", None):
        case (str() as host, int() as port):
            known["server"] = host, port
    return known


def observe(observers: Sequence[Observer]) -> Observation:
    """The ground for operations that are part of no other; raises `ConfigError` for what is no observer."""
    return Observation(tuple(_Guarded(it) for it in observers)) if observers else NOT_OBSERVED


def _read_outcome(error: BaseException) -> Ending:
    # asyncio's cancellation, an interrupt, and the end of a flow or stream that is closed are no
    # `Exception`.
    reason = _read_reason(error)
    if reason == "cancelled" or not isinstance(error, Exception):
        return "cancelled"
    return "late" if reason == "timeout" or isinstance(error, TimeoutError) else "failed"


def _read_reason(error: BaseException) -> str:
    # A function of the user's may give a `ModelError` any reason.
    is_known = isinstance(error, ModelError) and error.reason in REASONS
    return error.reason if is_known else type(error).__name__  # type: ignore[attr-defined]


def _count(result: Any) -> dict[str, int]:
    if isinstance(result, Reply):
        tokens = {"input_tokens": result.input_tokens, "output_tokens": result.output_tokens}
        return {"llm_calls": result.calls, **tokens}
    if isinstance(result, Answer):
        return {"passages": len(result.matches), "citations": len(result.citations)}
    if isinstance(result, Retrieval):
        trace = result.trace
        return {
            "passages": len(result.matches),
            "degradations": len(result.degradations),
            "searches": trace.searches,
            "llm_calls": trace.llm_calls,
            "input_tokens": trace.input_tokens,
            "output_tokens": trace.output_tokens,
        }
    # Vectors come with them if their service counts.
    read = getattr(result, "input_tokens", 0) if isinstance(result, list) else 0
    return {"input_tokens": read} if read else {}


# --- hooks ----------------------------------------------------------------------------------------

HOOK_SECONDS: Final = 1.0
"""How long a hook is waited for, where it is awaited or runs in a thread of ours."""
# How long a hook that was cancelled may take to clean up.
_DRAIN_SECONDS: Final = 0.02

# Holds something while a hook runs; tasks that outlive it find it empty.
_telling: Final[ContextVar[list[bool] | None]] = ContextVar("telling", default=None)


def validate_hook(hook: RetrievalHook | None) -> RetrievalHook | None:
    """Returns *hook* itself; raises `ConfigError` where it cannot be called."""
    if hook is None or callable(hook):
        return hook
    raise ConfigError(
        f"on_retrieval must be a function of a Retrieval, not {type(hook).__name__}",
        path="on_retrieval",
    )


def is_telling() -> bool:
    """Whether we are called by a hook: what that retrieves is told to nobody, or it would never end."""
    return bool(_telling.get())


@contextmanager
def _marked() -> Iterator[None]:
    mark = [True]
    token = _telling.set(mark)
    try:
        yield
    finally:
        mark.clear()
        # A coroutine that is thrown away may be closed in another context than it ran in.
        with suppress(ValueError):
            _telling.reset(token)


def tell(hook: RetrievalHook, retrieval: Retrieval) -> None:
    """Call *hook* with *retrieval* in this thread; what is to be awaited runs in the shared loop, `HOOK_SECONDS` long.

    Raises what the hook raises, and `TimeoutError`.
    """
    with _marked():
        told = hook(retrieval)
        if inspect.isawaitable(told):

            async def finish() -> None:
                await told

            run_in_background_loop(finish, HOOK_SECONDS)


async def atell(hook: RetrievalHook, retrieval: Retrieval, bulkhead: Bulkhead) -> None:
    """`tell` without blocking the running loop: a plain hook runs in a thread of *bulkhead*.

    Neither kind is waited for longer than `HOOK_SECONDS`. Raises `ModelError` "overloaded" where no
    thread is free.
    """

    async def call() -> None:
        told = (
            hook(retrieval)
            if is_async(hook)
            else await in_thread(partial(hook, retrieval), bulkhead)
        )
        if inspect.isawaitable(told):
            await told

    with _marked():
        # A task of its own: one that does not let itself be cancelled must not keep the caller.
        task = asyncio.get_running_loop().create_task(call())
        ended: set[asyncio.Task[None]] = set()
        try:
            ended, _ = await asyncio.wait((task,), timeout=HOOK_SECONDS)
        finally:
            if not ended and not task.get_loop().is_closed():
                task.add_done_callback(lambda it: it.cancelled() or it.exception())
                task.cancel()
                # A coroutine that is thrown away can wait for nothing.
                if not isinstance(sys.exception(), GeneratorExit):
                    await asyncio.wait((task,), timeout=_DRAIN_SECONDS)
    if not ended:
        raise TimeoutError("the hook did not end in time")
    if task.cancelled():
        raise RuntimeError("the hook was cancelled")
    task.result()
