"""Do a flow's work: with threads for a blocking caller, and with tasks for an asynchronous one.

A flow is an ordinary coroutine function that gets an `IO`. With `Tasks` it runs in the caller's
event loop. With `Threads` nothing that it awaits ever suspends, because every ``await`` blocks, so
one ``send(None)`` drives it from its beginning to its end in the caller's thread. A caller in an
event loop that is not asyncio's gets `Threads` too, and only its own function is really awaited.

A running thread cannot be stopped: at the deadline the caller only stops waiting for it. The
threads are daemons, so that a call that hangs does not keep the process from ending, as the threads
of `ThreadPoolExecutor` and of `anyio.to_thread` do.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableSequence, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.forking import make_lock, register_fork_reset
from qtmiddleware.types import NEVER, Deadline

T = TypeVar("T")
Ending = Literal["failed", "late", "cancelled"]
Work = Callable[[], Awaitable[T]]
"""A piece of a flow's work: a function without parameters that returns an awaitable."""

DRAIN_SECONDS: Final = 0.02
"""How many seconds to wait for cancelled tasks to clean up. After that nobody waits for them."""

MAX_THREADS: Final = 256
IDLE_SECONDS: Final = 10.0

CHECK_SECONDS: Final = 0.5
"""How long a thread waits at once. Ctrl-C does not end a wait that has just begun, but the next."""


# Python's messages for an exception that a coroutine may not raise.
_REPLACED: Final = re.compile(r"(coroutine|async generator) raised Stop(Async)?Iteration")


class Overloaded(ModelError):
    """Raised if all threads of a middleware are busy. Its message quotes no query or passage."""


class Bulkhead:
    """A pool of at most *limit* daemon threads. An idle thread ends after 10 seconds.

    If no thread is free, a call is rejected at once, because it could wait forever behind calls
    that hang. Source: Nygard, Release It!, 2007.

    Attributes:
        refused: How many calls were rejected.
        in_use: How many threads are in use now.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self.limit = limit
        self.refused = 0
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget all threads after a fork, because they belong to the parent process."""
        self._lock = threading.Lock()
        self.in_use = 0
        # How many threads wait for a task that nobody has put into the queue yet.
        self._idle = 0
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def start(self, task: Callable[[], None]) -> None:
        """Start *task* in a thread. Raise `ModelError` ``overloaded`` if no thread is free."""
        if sys.is_finalizing():
            # Threads stand still while the interpreter ends.
            task()
            return
        with self._lock:
            if self.in_use >= self.limit:
                self.refused += 1
                raise Overloaded(
                    "overloaded", f"all {self.limit} threads of the middleware are busy"
                )
            self.in_use += 1
            if self._idle:
                self._idle -= 1
                self._tasks.put(task)
                return
        thread = threading.Thread(
            target=self._perform_tasks,
            args=([task],),
            name="qtmiddleware",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            # The system has no thread left, or the process ends.
            if self.limit < sys.maxsize:
                raise Overloaded("overloaded", "the system starts no more threads") from None
            # The search for a question must always be made.
            task()
        finally:
            # Ctrl-C may come before the thread is started. A started thread counts itself.
            if thread.ident is None:
                with self._lock:
                    self.in_use -= 1

    def _perform_tasks(self, first: list[Callable[[], None]]) -> None:
        # A thread keeps its arguments, and an idle thread must keep nothing alive.
        task: Callable[[], None] | None = first.pop()
        while task is not None:
            # A task handles its own errors; an error that escapes must not end the pool's thread.
            with suppress(BaseException):
                task()
            task = None
            with self._lock:
                self.in_use -= 1
                self._idle += 1
            task = self._wait_for_task()

    def _wait_for_task(self) -> Callable[[], None] | None:
        """Return the next task; ``None`` if there is none for `IDLE_SECONDS`."""
        while True:
            with suppress(queue.Empty):
                return self._tasks.get(timeout=IDLE_SECONDS)
            with self._lock:
                if self._tasks.empty():
                    self._idle -= 1
                    return None


UNLIMITED: Final = Bulkhead(sys.maxsize)
"""The threads for original searches, and for work that waits for other threads."""

current_bulkhead: Final = ContextVar("current_bulkhead", default=UNLIMITED)
"""The threads for the blocking calls of the running code: a middleware's own in its work."""


@dataclass(eq=False, repr=False, slots=True)
class Outcome(Generic[T]):
    """The outcome of a piece of work: a *value*, an *error*, or neither if it was *late*.

    *seconds* is the duration, or how long the caller waited. *began* is a time of
    `time.perf_counter`. *place* is the work's place among those that were gathered.
    """

    value: T | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    began: float = 0.0
    late: bool = False
    place: int = 0

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
        error = self.error or TimeoutError("the work did not end in time")
        try:
            raise error
        finally:
            # Breaks a reference cycle: the error's traceback refers to this frame.
            del self, error


class Job(Generic[T]):
    """A piece of work beside its flow, which may stop waiting for it. The outcome goes to *ended*.

    A thread cannot be stopped, and a task may clean up slowly. So whatever has to end with the
    flow's patience is registered here: a deadline, or the report of an operation.
    """

    __slots__ = ("_began", "_endings", "_place", "_reports", "ended", "ending", "task")

    def __init__(self, ended: Mailbox[Outcome[T]], place: int = 0) -> None:
        self.ended = ended
        self.ending: Ending | None = None
        self.task: asyncio.Task[None] | None = None
        self._place = place
        self._began = perf_counter()
        self._endings = count()
        self._reports: MutableSequence[Callable[[Ending], object]] = []
        on_abandon(self.abandon)

    def on_abandon(self, report: Callable[[Ending], object]) -> None:
        """Call *report* when nobody waits for this work any more; at once if that is so already."""
        self._reports.append(report)
        if self.ending is not None:
            report(self.ending)

    def abandon(self, ending: Ending) -> None:
        """Stop waiting for this work, unless it has ended."""
        # Two threads may end a job. `next` is atomic, so only the first one sends an outcome.
        if next(self._endings):
            return
        self.ending = ending
        # Before the reports, which end what the task waits for: it is cancelled, it has not failed.
        if self.task is not None:
            # The call may be abandoned in another thread, or after its loop was closed.
            with suppress(RuntimeError):
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)
        for report in self._reports:
            report(ending)
        self._send(Outcome(late=True))

    def finish(self, outcome: Outcome[T]) -> None:
        """End with *outcome*, unless nobody waits for it any more."""
        if not next(self._endings):
            # What is reported to refers to the work, which an idle thread must not keep alive. And
            # a task that the work began may go on for ever: this keeps no reports of its calls.
            self._reports = deque(maxlen=0)
            self._send(outcome)

    def _send(self, outcome: Outcome[T]) -> None:
        outcome.place = self._place
        outcome.began = self._began
        outcome.seconds = perf_counter() - self._began
        self.ended.put(outcome)

    async def run(self, work: Work[T], bulkhead: Bulkhead) -> None:
        """Do *work* with the threads of *bulkhead*, unless nobody waits for it any more."""
        if self.ending is not None:
            return
        _job.set(self)
        current_bulkhead.set(bulkhead)
        self._began = perf_counter()
        try:
            self.finish(Outcome(await work()))
        except BaseException as error:
            self.finish(Outcome(error=error))
            # A `SystemExit` of a task would end the caller's event loop. The flow decides about it.
            if isinstance(error, KeyboardInterrupt):
                raise

    def start_thread(self, work: Work[T], bulkhead: Bulkhead, context: Context) -> None:
        """Do *work* in a thread of *bulkhead*. Without a free thread, that is the outcome."""
        try:
            bulkhead.start(lambda: context.run(drive, self.run(work, bulkhead)))
        except Overloaded as error:
            self.finish(Outcome(error=error))

    async def get(self) -> T:
        """Wait for the work's end and return its result, or raise its exception."""
        return (await self.ended.get(Deadline())).get()

    async def cancel(self, *, in_generator: bool = False) -> None:
        """Stop waiting for the work. Only an *in_generator* may await while it is being closed."""
        self.abandon("cancelled")
        await _drain([self], in_generator=in_generator)


_job: Final[ContextVar[Job[Any] | None]] = ContextVar("job", default=None)


def on_abandon(report: Callable[[Ending], object]) -> None:
    """Call *report* if the work that the calling code is part of is abandoned."""
    if (job := _job.get()) is not None:
        job.on_abandon(report)


async def _drain(jobs: Sequence[Job[Any]], *, in_generator: bool = False) -> None:
    """Give the cancelled tasks of *jobs* a moment to clean up."""
    running = [job.task for job in jobs if job.task is not None and not job.task.done()]
    # A coroutine that is being closed, for example because its loop was closed, must not await.
    if running and (in_generator or not isinstance(sys.exception(), GeneratorExit)):
        await asyncio.wait(running, timeout=DRAIN_SECONDS)


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


class _LoopMailbox(Mailbox[T]):
    """Carries items to a flow in an event loop, which stays free."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._arrived: deque[T] = deque()
        self._bell = asyncio.Event()

    def put(self, item: T) -> None:
        self._arrived.append(item)
        # If the loop was closed in the meantime, nobody waits any more.
        with suppress(RuntimeError):
            if threading.get_ident() == self._thread:
                self._bell.set()
            else:
                self._loop.call_soon_threadsafe(self._bell.set)

    async def get(self, deadline: Deadline) -> T:
        if not self._arrived:
            seconds = deadline.remaining()
            # Some event loops, such as Qt's, accept no infinite time.
            async with asyncio.timeout(None if seconds == NEVER else seconds):
                while not self._arrived:
                    self._bell.clear()
                    await self._bell.wait()
        return self._arrived.popleft()


class IO(ABC):
    """Does a flow's work, with threads of the *bulkhead*: see `Threads` and `Tasks`.

    *has_loop* says whether asyncio's event loop runs the flow. If not, models and embedders block.
    """

    has_loop: ClassVar[bool]
    mailbox: ClassVar[type[Mailbox[Any]]]

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead
        # All work begins with the caller's variables, and sees nothing that other work sets.
        self._context = copy_context()
        # Another middleware may have made this call. The search for the question, which runs in
        # the caller's context, must always get a thread.
        if current_bulkhead.get() is not UNLIMITED:
            current_bulkhead.set(UNLIMITED)

    @abstractmethod
    async def blocking(self, call: Callable[[], T]) -> T:
        """Make the blocking *call* and return its result, without blocking asyncio's loop."""

    async def call(self, function: Callable[[], Any], seconds: float = NEVER) -> Any:
        """Call a user's *function*, asynchronous or not; an awaitable may take *seconds* to end."""
        is_awaited = self.has_loop and is_async(function)
        result = function() if is_awaited else await self.blocking(function)
        if not inspect.isawaitable(result):
            return result
        if not self.has_loop:
            return run_in_background_loop(result, seconds)
        async with asyncio.timeout(None if seconds == NEVER else seconds):
            return await result

    @abstractmethod
    def launch(self, work: Work[T], job: Job[T], bulkhead: Bulkhead) -> None:
        """Begin *work* as *job*, in a context of its own."""

    def start(self, work: Work[T]) -> Job[T]:
        """Begin *work* beside the caller."""
        job: Job[T] = Job(self.mailbox())
        # Not a thread of the bulkhead's: there are never more of these than callers.
        self.launch(work, job, UNLIMITED)
        return job

    async def gather(
        self, works: Sequence[Work[T]], deadline: Deadline, limit: int
    ) -> list[Outcome[T]]:
        """Do *works* at the same time, at most *limit* at once, and return their outcomes in order.

        Work that has not ended at the *deadline* is late, and work that has not begun never does.
        """
        ended: Mailbox[Outcome[T]] = self.mailbox()
        jobs = [Job(ended, place) for place in range(len(works))]
        waiting = deque(zip(works, jobs, strict=True))
        outcomes: dict[int, Outcome[T]] = {}
        running = 0
        ending: Ending = "cancelled"
        try:
            while len(outcomes) < len(works):
                while waiting and running < limit and not deadline.passed:
                    work, job = waiting.popleft()
                    self.launch(work, job, self._bulkhead)
                    running += 1
                outcome = await ended.get(deadline)
                outcomes[outcome.place] = outcome
                running -= 1
        except TimeoutError:
            ending = "late"
        finally:
            for job in jobs:
                job.abandon(ending)
            await _drain(jobs)
        while len(outcomes) < len(works):
            outcome = await ended.get(Deadline())
            outcomes[outcome.place] = outcome
        return [outcomes[place] for place in range(len(works))]


async def gather_results(io: IO, works: Sequence[Work[T]], limit: int) -> list[T]:
    """Return the results of *works* in order. The first error ends all works and is raised."""
    deadline = Deadline()
    # The outcome of the work that fails may be that it is late, as it ends the time of all.
    errors: list[BaseException] = []

    async def stop_at_error(work: Work[T]) -> T:
        try:
            return await work()
        except BaseException as error:
            errors.append(error)
            deadline.cancel()
            raise

    outcomes = await io.gather([partial(stop_at_error, work) for work in works], deadline, limit)
    if errors:
        raise errors[0]
    return [outcome.get() for outcome in outcomes]


# --- the background loop --------------------------------------------------------------------------

# An asynchronous client's connections end with the event loop that opened them. In a loop that
# runs until the process ends, a caller without a loop can use them again.


class _LoopThread(threading.Thread):
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        super().__init__(target=self.loop.run_forever, name="qtmiddleware-loop", daemon=True)
        self.start()


_lock: Final = make_lock()
_threads: Final[dict[_LoopThread | None, _LoopThread]] = {}


def _get_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop for the calling thread's coroutines."""
    current = threading.current_thread()
    # A loop cannot wait for itself: code that runs in the shared loop gets another one.
    caller = current if isinstance(current, _LoopThread) else None
    with _lock:
        thread = _threads.get(caller)
        # In a forked process, the parent's threads count as dead.
        if thread is None or not thread.is_alive():
            thread = _threads[caller] = _LoopThread()
    return thread.loop


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def run_in_background_loop(awaitable: Awaitable[T], timeout: float = NEVER) -> T:
    """Run *awaitable* in the background loop, and block until its result is known.

    It sees the caller's context variables. It is cancelled after *timeout* seconds, or if the
    caller is interrupted.
    """
    future = asyncio.run_coroutine_threadsafe(_await(awaitable), _get_loop())
    try:
        return future.result(None if timeout == NEVER else timeout)
    finally:
        # After a timeout or an interrupt this cancels the coroutine; a future that is done stays.
        future.cancel()


async def await_in_background_loop(awaitable: Awaitable[T]) -> T:
    """Run *awaitable* in the background loop, and await its result in the running loop."""
    future = asyncio.run_coroutine_threadsafe(_await(awaitable), _get_loop())
    return await asyncio.wrap_future(future)


def is_async(function: object) -> bool:
    """Return whether calling *function* returns a coroutine.

    Looks at the function inside partials, methods, callable objects and `functools.wraps` wrappers.
    """
    if inspect.iscoroutinefunction(function):
        return True
    is_partial = isinstance(function, partial)
    inner = getattr(function, "func" if is_partial else "__wrapped__", None)
    if inner is not None and inner is not function:
        return is_async(inner)
    return inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


# --- threads --------------------------------------------------------------------------------------


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of *coroutine*, a flow over `Threads`. Blocks the calling thread."""
    # An event loop that runs in this thread would close the flow's generators when it ends.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except RuntimeError as error:
        # Python replaces an exception of the wrapped function that would end a coroutine.
        cause = error.__cause__
        is_end = isinstance(cause, StopIteration | StopAsyncIteration)
        if cause is not None and is_end and _REPLACED.fullmatch(str(error)):
            raise cause from None
        raise
    finally:
        coroutine.close()
        sys.set_asyncgen_hooks(*hooks)
    raise RuntimeError("a flow over threads must not suspend")


class Threads(IO):
    """Does the work of a blocking caller in daemon threads, which *bulkhead* limits."""

    has_loop = False
    mailbox = Mailbox

    async def blocking(self, call: Callable[[], T]) -> T:
        """Make *call* in this thread."""
        return call()

    def launch(self, work: Work[T], job: Job[T], bulkhead: Bulkhead) -> None:
        """Begin *work* in a thread of *bulkhead*."""
        job.start_thread(work, bulkhead, self._context.copy())


# --- tasks ----------------------------------------------------------------------------------------


class Tasks(IO):
    """Does the work of an asynchronous caller in tasks of the running event loop.

    A blocking function gets a thread of *bulkhead*; the search for the question always gets one.
    """

    has_loop = True
    mailbox = _LoopMailbox

    async def blocking(self, call: Callable[[], T]) -> T:
        """Make *call* in a thread and await its end."""
        return await run_in_thread(call)

    def launch(self, work: Work[T], job: Job[T], bulkhead: Bulkhead) -> None:
        """Begin *work* in a task."""
        loop = asyncio.get_running_loop()
        # A task copies the context that it is made in.
        job.task = self._context.copy().run(loop.create_task, job.run(work, bulkhead))


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run *call* in a thread of the `current_bulkhead` and await its result."""

    async def work() -> T:
        return call()

    job: Job[T] = Job(_LoopMailbox())
    # If the caller is cancelled, the call runs on in its thread.
    job.start_thread(work, current_bulkhead.get(), copy_context())
    return await job.get()


def make_async_io(bulkhead: Bulkhead) -> IO:
    """Return the `IO` for an asynchronous caller, with threads of *bulkhead*."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # Another library's loop, such as trio's. What is not the caller's own function blocks it.
        return Threads(bulkhead)
    return Tasks(bulkhead)
