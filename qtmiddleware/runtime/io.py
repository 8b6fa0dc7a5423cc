"""Do a flow's work: with threads for a blocking caller, and with tasks for an asynchronous one.

A flow is an ordinary coroutine function that gets an `IO`. With `Tasks` it runs in the caller's
event loop. With `Threads` nothing that it awaits ever suspends, because every ``await`` blocks, so
one ``send(None)`` drives it from its beginning to its end in the caller's thread. A caller in an
event loop that is not asyncio's gets `Threads` too, and only its own function is really awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from qtmiddleware.runtime.background_loop import is_async, run_in_background_loop
from qtmiddleware.runtime.threads import (
    UNLIMITED,
    Bulkhead,
    Overloaded,
    current_bulkhead,
    run_in_thread,
)
from qtmiddleware.types import NEVER, Deadline

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ending = Literal["failed", "late", "cancelled"]
Work = Callable[[], Awaitable[T]]
"""A piece of a flow's work: a function without parameters that returns an awaitable."""

DRAIN_SECONDS: Final = 0.02
"""How many seconds to wait for cancelled tasks to clean up. After that nobody waits for them."""

CHECK_SECONDS: Final = 0.5
"""How long a thread waits at once. Ctrl-C does not end a wait that has just begun, but the next."""


@dataclass(eq=False, repr=False, slots=True)
class Outcome(Generic[T]):
    """The outcome of a piece of work: a *value*, an *error*, or neither if it was *late*.

    *seconds* is the duration, or how long the caller waited. *began* is a time of
    `time.perf_counter`.
    """

    value: T | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    began: float = 0.0
    late: bool = False

    @property
    def has_succeeded(self) -> bool:
        """Whether the work was not late and raised no exception."""
        return self.error is None and not self.late

    @property
    def reason(self) -> str:
        """Why the work failed: ``timeout``, ``overloaded`` (no thread was free) or ``failed``."""
        if self.late:
            return "timeout"
        return "overloaded" if isinstance(self.error, Overloaded) else "failed"

    @property
    def detail(self) -> str:
        """The name of the error's type. Its message may quote a query or a passage."""
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

    __slots__ = ("_on_end", "_reports", "began", "ending")

    def __init__(self, on_end: Callable[[Outcome[Any]], object]) -> None:
        self.began = 0.0
        self.ending: Ending | None = None
        # Two threads may end a job. `pop` is atomic, so only the first one reports the outcome.
        self._on_end = [on_end]
        self._reports: list[Callable[[Ending], object]] = []
        on_abandon(self.abandon)

    def on_abandon(self, report: Callable[[Ending], object]) -> None:
        """Call *report* when nobody waits for this work any more; at once if that is so already."""
        self._reports.append(report)
        if self.ending is not None:
            report(self.ending)

    def finish(self, outcome: Outcome[Any]) -> None:
        """End with *outcome*, unless the work has ended."""
        # What is reported to refers to the work, and an error of the work refers to this job. So
        # this job must not refer to the outcome either.
        with suppress(IndexError):
            on_end = self._on_end.pop()
            self._reports = []
            on_end(outcome)

    def abandon(self, ending: Ending) -> None:
        """Stop waiting for this work, unless it has ended."""
        with suppress(IndexError):
            on_end = self._on_end.pop()
            self.ending = ending
            for report in self._reports:
                report(ending)
            now = perf_counter()
            began = self.began or now
            on_end(Outcome(late=True, seconds=now - began, began=began))


_job: Final[ContextVar[Job | None]] = ContextVar("job", default=None)


def on_abandon(report: Callable[[Ending], object]) -> None:
    """Call *report* if the work that the calling code is part of is abandoned."""
    if (job := _job.get()) is not None:
        job.on_abandon(report)


class Beside(Protocol[T_co]):
    """Work that runs beside its flow."""

    async def get(self) -> T_co:
        """Wait for the work's end and return its result, or raise its exception."""

    async def cancel(self, *, in_generator: bool = False) -> None:
        """Stop waiting for the work. Only an *in_generator* may await while it is being closed."""


class Mailbox(Generic[T]):
    """Carries items to a flow from any thread. Waiting for them blocks the flow's own thread.

    It is a queue and not a `threading.Event`, which Ctrl-C at the wrong moment leaves locked.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        """Send *item*."""
        self._items.put(item)

    async def get(self, deadline: Deadline) -> T:
        """Wait for the next item; raise `TimeoutError` if there is none at *deadline*."""
        while True:
            with suppress(queue.Empty):
                return self._items.get(timeout=min(deadline.remaining(), CHECK_SECONDS))
            if deadline.passed:
                raise TimeoutError


class IO(ABC):
    """Does a flow's work, with threads of the *bulkhead*: see `Threads` and `Tasks`.

    *has_loop* says whether asyncio's event loop runs the flow. If not, models and embedders block.
    """

    has_loop: bool

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead
        self._context = copy_context()
        # Another middleware may have made this call. The search for the question, which runs in
        # the caller's context, must always get a thread.
        if current_bulkhead.get() is not UNLIMITED:
            current_bulkhead.set(UNLIMITED)

    @abstractmethod
    async def blocking(self, call: Callable[[], T]) -> T:
        """Make the blocking *call* and return its result, without blocking asyncio's loop."""

    @abstractmethod
    async def call(self, function: Callable[[], Any], seconds: float = NEVER) -> Any:
        """Call a user's *function*, asynchronous or not; an awaitable may take *seconds* to end."""

    @abstractmethod
    def start(self, work: Work[T]) -> Beside[T]:
        """Begin *work* beside the caller."""

    @abstractmethod
    async def gather(
        self, works: Sequence[Work[T]], deadline: Deadline, limit: int
    ) -> list[Outcome[T]]:
        """Do *works* at the same time, at most *limit* at once, and return their outcomes in order.

        Work that has not ended at the *deadline* is late, and work that has not begun never does.
        """

    def make_mailbox(self) -> Mailbox[Any]:
        """Return a new mailbox for this flow."""
        return Mailbox()

    def _copy_context(self) -> Context:
        """Return the context for the flow's next work: a copy of the one it began with."""
        is_own_work = current_bulkhead.get() is self._bulkhead
        return copy_context() if is_own_work else self._context.copy()

    async def attempt(self, work: Work[Any], job: Job) -> None:
        """Do *work* as *job*, in a context of its own."""
        _job.set(job)
        current_bulkhead.set(self._bulkhead)
        job.began = began = perf_counter()
        try:
            value = await work()
        except BaseException as error:
            job.finish(Outcome(error=error, seconds=perf_counter() - began, began=began))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            job.finish(Outcome(value, seconds=perf_counter() - began, began=began))


async def gather_results(io: IO, works: Sequence[Work[T]], limit: int) -> list[T]:
    """Return the results of *works* in order. After an error, no other work begins."""
    # Work that has not begun at a deadline never does.
    deadline = Deadline()

    async def stop_at_error(work: Work[T]) -> T:
        try:
            return await work()
        except BaseException:
            deadline.cancel()
            raise

    outcomes = await io.gather(
        [partial(stop_at_error, work) for work in works],
        deadline,
        limit,
    )
    # Work that did not begin is late, because other work failed.
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.get() for outcome in outcomes]


# --- threads --------------------------------------------------------------------------------------


class FunctionStopped(Exception):
    """Carries a `StopIteration` of the wrapped function, which no coroutine could pass on."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


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


class _Thread(Generic[T]):
    def __init__(self) -> None:
        self._ended: Mailbox[Outcome[T]] = Mailbox()
        self.job = Job(self._ended.put)

    async def get(self) -> T:
        outcome = await self._ended.get(Deadline())
        return outcome.get()

    async def cancel(self, *, in_generator: bool = False) -> None:
        del in_generator  # There is nothing to await.
        self.job.abandon("cancelled")


class Threads(IO):
    """Does the work of a blocking caller in daemon threads, which *bulkhead* limits."""

    has_loop = False

    async def blocking(self, call: Callable[[], T]) -> T:
        """Make *call* in this thread."""
        try:
            return call()
        except StopIteration as error:
            raise FunctionStopped(error) from None

    async def call(self, function: Callable[[], Any], seconds: float = NEVER) -> Any:
        """Call *function* in this thread; an awaitable runs in the background loop."""
        result = function()
        return run_in_background_loop(result, seconds) if inspect.isawaitable(result) else result

    def start(self, work: Work[T]) -> _Thread[T]:
        """Begin *work* in a thread of its own."""
        thread: _Thread[T] = _Thread()
        attempt = partial(self._attempt_in_thread, work, thread.job)
        # Not a thread of the bulkhead's: there are never more of these than callers.
        UNLIMITED.start(partial(self._copy_context().run, attempt))
        return thread

    def _attempt_in_thread(self, work: Work[Any], job: Job) -> None:
        # The outcome holds the exception, and in this thread nobody else would notice it.
        with suppress(BaseException):
            drive(self.attempt(work, job))

    async def gather(
        self, works: Sequence[Work[T]], deadline: Deadline, limit: int
    ) -> list[Outcome[T]]:
        """Do *works* in threads of the bulkhead."""
        if is_abandoned() or deadline.passed or not works:
            return [Outcome(late=True) for _ in works]
        context = self._copy_context()
        outcomes: dict[int, Outcome[T]] = {}
        all_ended: Mailbox[None] = Mailbox()

        def record_outcome(place: int, outcome: Outcome[T]) -> None:
            outcomes[place] = outcome
            if len(outcomes) == len(works):
                all_ended.put(None)

        jobs = [Job(partial(record_outcome, place)) for place in range(len(works))]
        waiting = deque(zip(works, jobs, strict=True))

        def do_waiting_works() -> None:
            with suppress(IndexError):
                while True:
                    work, job = waiting.popleft()
                    if deadline.passed or job.ending:
                        job.abandon("late")
                    else:
                        # Each work sees what the caller has set, and nothing that another sets.
                        context.copy().run(self._attempt_in_thread, work, job)

        ending: Ending = "cancelled"
        try:
            for begun in range(min(limit, len(works))):
                try:
                    self._bulkhead.start(do_waiting_works)
                except Overloaded as error:
                    if not begun:
                        return [Outcome(error=error) for _ in works]
                    # The threads that there are do all works, one after the other.
                    break
            with suppress(TimeoutError):
                await all_ended.get(deadline)
            ending = "late"
        finally:
            waiting.clear()
            for job in jobs:
                job.abandon(ending)
        return [outcomes[place] for place in range(len(works))]


def is_abandoned() -> bool:
    """Return whether nobody waits any more for the work that the calling code is part of."""
    job = _job.get()
    return job is not None and job.ending is not None


# --- tasks ----------------------------------------------------------------------------------------


def _cancel(task: asyncio.Task[Any], _: Ending) -> None:
    # The call that the task is part of may have been abandoned in another thread, or after its
    # loop was closed.
    with suppress(RuntimeError):
        task.get_loop().call_soon_threadsafe(task.cancel)


async def _drain(tasks: Iterable[asyncio.Task[Any]], *, in_generator: bool = False) -> None:
    """Give cancelled *tasks* a moment to clean up."""
    running = [task for task in tasks if not task.done()]
    # A coroutine that is being closed, for example because its loop was closed, must not await.
    if running and (in_generator or not isinstance(sys.exception(), GeneratorExit)):
        await asyncio.wait(running, timeout=DRAIN_SECONDS)


class _LoopMailbox(Mailbox[T]):
    """Carries items to a flow in an event loop, which stays free."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[T] = asyncio.Queue()

    def put(self, item: T) -> None:
        # If the loop was closed in the meantime, nobody waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def get(self, deadline: Deadline) -> T:
        async with asyncio.timeout(deadline.timeout):
            return await self._queue.get()


def _create_task(work: Coroutine[Any, Any, None], job: Job, context: Context) -> asyncio.Task[None]:
    # A task copies the context that it is made in.
    task = context.run(asyncio.get_running_loop().create_task, work)
    job.on_abandon(partial(_cancel, task))
    return task


class _Task(Generic[T]):
    def __init__(self, io: Tasks, work: Work[T], context: Context) -> None:
        self._outcomes: list[Outcome[T]] = []
        self._job = job = Job(self._outcomes.append)
        self._task = _create_task(io.attempt(work, job), job, context)

    async def get(self) -> T:
        await asyncio.wait((self._task,))
        return self._outcomes[0].get()

    async def cancel(self, *, in_generator: bool = False) -> None:
        self._job.abandon("cancelled")
        await _drain([self._task], in_generator=in_generator)


class Tasks(IO):
    """Does the work of an asynchronous caller in tasks of the running event loop.

    A blocking function gets a thread of *bulkhead*; the search for the question always gets one.
    """

    has_loop = True

    async def blocking(self, call: Callable[[], T]) -> T:
        """Make *call* in a thread and await its end."""
        return await run_in_thread(call)

    async def call(self, function: Callable[[], Any], seconds: float = NEVER) -> Any:
        """Call *function*, in a thread if it is not asynchronous."""
        result = function() if is_async(function) else await run_in_thread(function)
        if not inspect.isawaitable(result):
            return result
        async with asyncio.timeout(None if seconds == NEVER else seconds):
            return await result

    def start(self, work: Work[T]) -> _Task[T]:
        """Begin *work* in a task of its own."""
        return _Task(self, work, self._copy_context())

    async def gather(
        self, works: Sequence[Work[T]], deadline: Deadline, limit: int
    ) -> list[Outcome[T]]:
        """Do each of *works* in a task of its own."""
        if not works or deadline.passed:
            return [Outcome(late=True) for _ in works]
        turn = asyncio.Semaphore(limit)

        async def attempt_in_turn(work: Work[T], job: Job) -> None:
            async with turn:
                if not deadline.passed:
                    await self.attempt(work, job)

        attempt = attempt_in_turn if limit < len(works) else self.attempt
        context = self._copy_context()
        outcomes: dict[int, Outcome[T]] = {}
        jobs = [Job(partial(outcomes.__setitem__, place)) for place in range(len(works))]
        tasks = [
            _create_task(attempt(work, job), job, context)
            for work, job in zip(works, jobs, strict=True)
        ]
        ending: Ending = "cancelled"
        try:
            await asyncio.wait(tasks, timeout=deadline.timeout)
            ending = "late"
        finally:
            for job in jobs:
                job.abandon(ending)
            await _drain(tasks)
        return [outcomes[place] for place in range(len(works))]

    def make_mailbox(self) -> _LoopMailbox[Any]:
        """Return a mailbox that leaves the loop free."""
        return _LoopMailbox()


def make_async_io(bulkhead: Bulkhead) -> IO:
    """Return the `IO` for an asynchronous caller, with threads of *bulkhead*."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # Another library's loop, such as trio's. What is not the caller's own function blocks it.
        return Threads(bulkhead)
    return Tasks(bulkhead)
