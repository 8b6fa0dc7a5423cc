"""Do a flow's work: with threads for a blocking caller, and with tasks for an asynchronous one.

A flow is an ordinary coroutine function that gets an `IO`. With `Tasks` it runs in the caller's
event loop. With `Threads` nothing that it awaits ever suspends, because every ``await`` blocks, so
one ``send(None)`` drives it from its beginning to its end in the caller's thread.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.background_loop import is_async, run_in_background_loop
from qtmiddleware.runtime.threads import (
    Bulkhead,
    Overloaded,
    copy_context_with_bulkhead,
    run_in_thread,
    start_thread,
)
from qtmiddleware.types import NEVER, Deadline

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ending = Literal["failed", "late", "cancelled"]
Work = Callable[[], Awaitable[T]]
"""A piece of a flow's work: a function without parameters that returns an awaitable."""

DRAIN_SECONDS: Final = 0.02
"""How many seconds to wait for cancelled tasks to clean up. After that nobody waits for them."""


@dataclass(eq=False, repr=False, slots=True)
class Outcome(Generic[T]):
    """The outcome of a piece of work: a *value*, an *error*, or neither if it was late.

    Attributes:
        value: The result.
        error: The exception that was raised.
        seconds: The duration. If the work was late, how long the caller waited.
        began: When the work began, on the clock of `time.perf_counter`.
        late: Whether the work was still unfinished when the caller stopped waiting.
    """

    value: T | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    began: float = 0.0
    late: bool = field(default=False, kw_only=True)

    @property
    def has_succeeded(self) -> bool:
        """Whether the work succeeded: it was not late and raised no exception."""
        return self.error is None and not self.late

    @property
    def reason(self) -> str:
        """Why the work failed: ``timeout``, ``overloaded`` (no thread was free) or ``failed``."""
        if self.late:
            return "timeout"
        return "overloaded" if isinstance(self.error, Overloaded) else "failed"

    @property
    def detail(self) -> str:
        """The name of the error's type; ``""`` if there was no error.

        If no thread was free, this is the error's message. Other messages are left out, because
        they may quote a query or a passage.
        """
        if self.error is None:
            return ""
        return str(self.error) if self.reason == "overloaded" else type(self.error).__name__

    def get(self) -> T:
        """Return the value, or raise the error; `TimeoutError` if the work was late."""
        if self.has_succeeded:
            return self.value  # type: ignore[return-value]
        raise self.error or TimeoutError("the work did not end in time")


class Job:
    """A piece of work that its flow may stop waiting for.

    A thread cannot be stopped, and a task may clean up slowly. So whatever has to end with the
    flow's patience is registered here: a deadline, or the report of an operation.
    """

    __slots__ = ("_reports", "began", "ending", "run_id")

    def __init__(self, run_id: object) -> None:
        self.run_id = run_id
        self.began = 0.0
        self.ending: Ending | None = None
        self._reports: list[Callable[[Ending], object]] = []
        if (parent := _job.get()) is not None:
            parent.on_abandon(self.abandon)

    def on_abandon(self, report: Callable[[Ending], object]) -> None:
        """Call *report* when nobody waits for this work any more; at once if that is so already."""
        self._reports.append(report)
        if self.ending is not None:
            report(self.ending)

    def abandon(self, ending: Ending) -> None:
        """Stop waiting for this work. Only the first call counts."""
        if self.ending is None:
            self.ending = ending
            for report in self._reports:
                report(ending)
            self.close()

    def close(self) -> None:
        """Forget whom to report to, because the work has ended."""
        # What is reported to refers to the work, and an error of the work refers to this job.
        self._reports = []


_job: Final[ContextVar[Job | None]] = ContextVar("job", default=None)


def on_abandon(report: Callable[[Ending], object]) -> None:
    """Call *report* if the work that the calling code is part of is abandoned."""
    if (job := _job.get()) is not None:
        job.on_abandon(report)


class Beside(Protocol[T_co]):
    """Work that runs while its flow does something else."""

    async def get(self) -> T_co:
        """Wait for the work's end and return its result, or raise its exception."""

    async def cancel(self) -> None:
        """Stop waiting for the work, unless it has ended."""


class IO(Protocol):
    """How a flow's work is done: `Threads` or `Tasks`."""

    can_await: bool
    """Whether the work can await something. If not, every call blocks."""
    has_loop: bool
    """Whether asyncio's event loop can do work while the caller waits."""

    async def blocking(self, call: Callable[[], T]) -> T:
        """Make the blocking *call* and return its result, without blocking an event loop."""

    async def call(self, function: Callable[[], Any], seconds: float = NEVER) -> Any:
        """Call a user's *function*, asynchronous or not; an awaitable may take *seconds* to end."""

    def start(self, work: Work[T]) -> Beside[T]:
        """Begin *work* at once, beside the caller."""

    async def gather(
        self, works: Sequence[Work[T]], deadline: Deadline, limit: int
    ) -> list[Outcome[T]]:
        """Do *works* at the same time, at most *limit* at once, and return their outcomes in order.

        Work that has not ended at the *deadline* is late, and work that has not begun never does.
        """

    async def join(self, result: Future[T], deadline: Deadline) -> T | None:
        """Wait for *result*, at most until *deadline*; ``None`` if it is late."""


# --- threads --------------------------------------------------------------------------------------


class FunctionStopped(Exception):
    """Carries a `StopIteration` of the wrapped function, which no coroutine could pass on."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


class _Abandoned(BaseException):
    """Ends a flow in a thread, because nobody waits for the flow any more."""


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of *coroutine*, a flow over `Threads`. Blocks the calling thread."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except FunctionStopped as stopped:
        raise stopped.error from None
    finally:
        coroutine.close()
    raise RuntimeError("a flow over threads must not suspend")


def _attempt(work: Work[T], job: Job) -> Outcome[T]:
    """Do *work* in this thread and return its outcome.

    Every exception is caught, because nobody else would notice it in this thread.
    """
    _job.set(job)
    job.began = began = perf_counter()
    try:
        value = drive(_await(work))
    except BaseException as error:
        return Outcome(error=error, seconds=perf_counter() - began, began=began)
    finally:
        job.close()
    return Outcome(value, seconds=perf_counter() - began, began=began)


async def _await(work: Work[T]) -> T:
    return await work()


class _Thread(Generic[T]):
    """Work in a thread of its own."""

    def __init__(self, work: Work[T], job: Job, context: Context) -> None:
        self._job = job
        self._done: queue.SimpleQueue[Outcome[T]] = queue.SimpleQueue()
        # Not a thread of the bulkhead's: there are never more of these than callers.
        start_thread(lambda: self._done.put(context.run(_attempt, work, job)))

    async def get(self) -> T:
        return self._done.get().get()

    async def cancel(self) -> None:
        if self._done.empty():
            self._job.abandon("cancelled")


class Threads:
    """Does the work of a blocking caller in daemon threads, which *bulkhead* limits.

    Create it before the search for the question, which runs in the caller's own context and may
    change it.
    """

    can_await = has_loop = False

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead
        self._context = copy_context_with_bulkhead(bulkhead)

    async def blocking(self, call: Callable[[], T]) -> T:
        """Make *call* in this thread."""
        return call()

    async def call(self, function: Callable[[], Any], seconds: float = NEVER) -> Any:
        """Call *function* in this thread; an awaitable runs in the background loop."""
        result = function()
        if not inspect.isawaitable(result):
            return result
        return run_in_background_loop(partial(_await, lambda: result), seconds)

    def start(self, work: Work[T]) -> _Thread[T]:
        """Begin *work* in a thread of its own."""
        return _Thread(work, Job(self._context), _copy_context(self._context))

    async def gather(
        self, works: Sequence[Work[T]], deadline: Deadline, limit: int
    ) -> list[Outcome[T]]:
        """Do *works* in threads of the bulkhead."""
        context, jobs = _copy_context(self._context), [Job(self._context) for _ in works]
        waiting = deque(range(len(works)))
        done: queue.SimpleQueue[tuple[int, Outcome[T]] | None] = queue.SimpleQueue()
        outcomes: list[Outcome[T] | None] = [None] * len(works)

        def do_waiting_works() -> None:
            with suppress(IndexError):
                while not deadline.passed:
                    position = waiting.popleft()
                    if jobs[position].ending is not None:
                        return
                    # Each work sees what the caller has set, and nothing that another work sets.
                    outcome = context.copy().run(_attempt, works[position], jobs[position])
                    done.put((position, outcome))
                    # Breaks a reference cycle: the error's traceback refers to this frame.
                    del outcome

        if (refusal := self._start_threads(do_waiting_works, min(limit, len(works)))) is not None:
            return [Outcome(error=refusal) for _ in works]
        ending: Ending = "cancelled"
        try:
            on_abandon(lambda _: done.put(None))
            for _ in works:
                seconds = deadline.remaining()
                try:
                    item = done.get(timeout=None if seconds == NEVER else seconds)
                except queue.Empty:
                    break
                if item is None:
                    raise _Abandoned
                outcomes[item[0]] = item[1]
            ending = "late"
        finally:
            waiting.clear()
            now = perf_counter()
            for position, job in enumerate(jobs):
                if outcomes[position] is None:
                    job.abandon(ending)
                    outcomes[position] = _make_late_outcome(job, now)
            self._bulkhead.record_abandoned_calls(
                sum(1 for job in jobs if job.ending is not None and job.began)
            )
        return [outcome for outcome in outcomes if outcome is not None]

    def _start_threads(self, task: Callable[[], None], count: int) -> ModelError | None:
        """Start *task* in up to *count* threads; return the error if none could begin."""
        for begun in range(count):
            try:
                self._bulkhead.start(task)
            except ModelError as error:
                # The threads that have begun do all works.
                return None if begun else error
        return None

    async def join(self, result: Future[T], deadline: Deadline) -> T | None:
        """Block until *result* is known."""
        return _join(result, deadline)


def _join(result: Future[T], deadline: Deadline) -> T | None:
    """Block until *result* is known; ``None`` if it is late."""
    done: queue.SimpleQueue[Future[T] | None] = queue.SimpleQueue()
    result.add_done_callback(done.put)
    on_abandon(lambda _: done.put(None))
    seconds = deadline.remaining()
    try:
        landed = done.get(timeout=None if seconds == NEVER else seconds)
    except queue.Empty:
        return None
    if landed is None:
        raise _Abandoned
    return landed.result()


def _copy_context(root: Context) -> Context:
    """Return the context for a flow's next work: a copy of *root*, which the flow began with.

    Work of this flow's own work inherits what that has set.
    """
    job = _job.get()
    return copy_context() if job is not None and job.run_id is root else root.copy()


def _make_late_outcome(job: Job, now: float) -> Outcome[Any]:
    began = job.began or now
    return Outcome(late=True, seconds=now - began, began=began)


# --- tasks ----------------------------------------------------------------------------------------


async def _aattempt(work: Work[T], job: Job) -> Outcome[T]:
    """Do *work* in the caller's task and return its outcome."""
    job.began = began = perf_counter()
    try:
        value = await work()
    except Exception as error:
        return Outcome(error=error, seconds=perf_counter() - began, began=began)
    return Outcome(value, seconds=perf_counter() - began, began=began)


async def _perform(work: Work[T], job: Job) -> Outcome[T]:
    """Do *work* in this task of its own, and return its outcome."""
    _job.set(job)
    try:
        return await _aattempt(work, job)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled the task: something inside the function was cancelled.
        return Outcome(error=error, seconds=perf_counter() - job.began, began=job.began)
    finally:
        job.close()


async def _perform_in_turn(
    work: Work[T], job: Job, deadline: Deadline, turn: asyncio.Semaphore
) -> Outcome[T]:
    """Do *work* in this task of its own, when it is its *turn*, and return its outcome."""
    async with turn:
        if deadline.passed:
            return _make_late_outcome(job, perf_counter())
        return await _perform(work, job)


def _find_running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; ``None`` if asyncio runs none here."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _create_task(
    coroutine: Coroutine[Any, Any, Outcome[T]], job: Job, context: Context
) -> asyncio.Task[Outcome[T]]:
    """Start *coroutine* in a task of its own, which ends when its *job* is abandoned."""
    # A task copies the context that it is made in. The context is not passed as an argument because
    # older task factories do not accept it.
    task: asyncio.Task[Outcome[T]] = context.run(asyncio.get_running_loop().create_task, coroutine)
    job.on_abandon(partial(_cancel, task))
    return task


def _cancel(task: asyncio.Task[Any], _: Ending) -> None:
    loop = task.get_loop()
    # The call that the task is part of may have been abandoned in another thread.
    if _find_running_loop() is loop:
        task.cancel()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


async def _stop(tasks: Sequence[asyncio.Task[Any]], jobs: Sequence[Job], ending: Ending) -> None:
    """Cancel *tasks*, whose *jobs* nobody waits for, and give them a moment to clean up."""
    for job in jobs:
        job.abandon(ending)
    # A coroutine that is being closed, for example because its loop was closed, must not await.
    if tasks and not isinstance(sys.exception(), GeneratorExit):
        await asyncio.wait(tasks, timeout=DRAIN_SECONDS)


class _Task(Generic[T]):
    """Work in a task of its own."""

    def __init__(self, work: Work[T], job: Job, context: Context) -> None:
        self._job = job
        self._task = _create_task(_perform(work, job), job, context)

    async def get(self) -> T:
        await asyncio.wait((self._task,))
        return self._task.result().get()

    async def cancel(self) -> None:
        if not self._task.done():
            await _stop((self._task,), (self._job,), "cancelled")


class Tasks:
    """Does the work of an asynchronous caller in tasks of the running event loop.

    A blocking function gets a thread of *bulkhead*; the search for the question always gets one.
    Under an event loop that is not asyncio's, all work is done one after the other in the caller's
    task, and blocking calls block that loop.
    """

    can_await = True

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._context = copy_context_with_bulkhead(bulkhead)
        self.has_loop = _find_running_loop() is not None

    async def blocking(self, call: Callable[[], T]) -> T:
        """Make *call* in a thread and await its end."""
        return await run_in_thread(call) if self.has_loop else call()

    async def call(self, function: Callable[[], Any], seconds: float = NEVER) -> Any:
        """Call *function*, in a thread if it is not asynchronous."""
        result = function() if is_async(function) else await self.blocking(function)
        if not inspect.isawaitable(result):
            return result
        async with asyncio.timeout(None if seconds == NEVER else seconds):
            return await result

    def start(self, work: Work[T]) -> Beside[T]:
        """Begin *work* in a task of its own."""
        if not self.has_loop:
            return _Later(work)
        return _Task(work, Job(self._context), _copy_context(self._context))

    async def gather(
        self, works: Sequence[Work[T]], deadline: Deadline, limit: int
    ) -> list[Outcome[T]]:
        """Do each of *works* in a task of its own."""
        jobs = [Job(self._context) for _ in works]
        if not self.has_loop:
            return [
                _make_late_outcome(job, perf_counter())
                if deadline.passed
                else await _aattempt(work, job)
                for work, job in zip(works, jobs, strict=True)
            ]
        if not works or deadline.passed:
            return [_make_late_outcome(job, perf_counter()) for job in jobs]
        context = _copy_context(self._context)
        turn = asyncio.Semaphore(limit) if limit < len(works) else None
        tasks = [
            _create_task(
                _perform(work, job)
                if turn is None
                else _perform_in_turn(work, job, deadline, turn),
                job,
                context,
            )
            for work, job in zip(works, jobs, strict=True)
        ]
        ending: Ending = "cancelled"
        now = 0.0
        try:
            seconds = deadline.remaining()
            await asyncio.wait(tasks, timeout=None if seconds == NEVER else seconds)
            ending, now = "late", perf_counter()
        finally:
            late = [place for place, task in enumerate(tasks) if not task.done()]
            await _stop([tasks[place] for place in late], [jobs[place] for place in late], ending)
        return [
            _make_late_outcome(job, now) if place in late else _read_outcome(task, job, now)
            for place, (task, job) in enumerate(zip(tasks, jobs, strict=True))
        ]

    async def join(self, result: Future[T], deadline: Deadline) -> T | None:
        """Await *result*; other callers that wait for it are not affected."""
        if not self.has_loop:
            return _join(result, deadline)
        seconds, waiting = deadline.remaining(), asyncio.wrap_future(result)
        try:
            await asyncio.wait((waiting,), timeout=None if seconds == NEVER else seconds)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()


def _read_outcome(task: asyncio.Task[Outcome[T]], job: Job, now: float) -> Outcome[T]:
    if task.cancelled():
        return _make_late_outcome(job, now)
    error = task.exception()
    return task.result() if error is None else Outcome(error=error)


class _Later(Generic[T]):
    """Work that begins when its result is awaited."""

    def __init__(self, work: Work[T]) -> None:
        self._work = work

    async def get(self) -> T:
        return await self._work()

    async def cancel(self) -> None:
        """Do nothing: the work has not begun, or has ended."""
