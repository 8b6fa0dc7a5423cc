"""Run batches of work on this machine, in this process or in several processes.

Workers are new Python processes that receive batches through pipes. A worker does not run the
user's script, so the script needs no ``if __name__ == "__main__"``, and notebooks work as scripts
do:

    todo -> a thread per worker -> (pipe) worker (pipe) -> the same thread -> done

`concurrent.futures.ProcessPoolExecutor` is not used for three reasons: it runs the script again;
before Python 3.14 it cannot stop a busy worker; and before Python 3.11.5 it may hang if a worker
crashes while a large batch is sent to it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any, BinaryIO, Final, TypeVar

from qtmiddleware.errors import ConfigError, EngineError
from qtmiddleware.kit.engines.outcome import Outcome
from qtmiddleware.runtime.environment import copy_worker_environment

B = TypeVar("B")
R = TypeVar("R")

AHEAD: Final = 3
"""How many batches per worker are taken and not done.

A worker is busy with one; the others keep it from waiting for the source.
"""
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Limits each worker's arithmetic to one thread, because each worker has one core.

numpy reads the variables when it is loaded.
"""
_ENDING_SECONDS: Final = 10.0
"""How many seconds a worker may take to end after it has closed its pipes."""
# The worker imports from the paths of this process: the current folder must not decide what is
# imported.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from qtmiddleware.kit.engines.local import serve; serve()"
)


class LocalEngine:
    """Runs batches of work in this process, or in *workers* processes on this machine.

    Each worker process computes with one thread, and has its own copy of large objects such as a
    model's weights.

    Args:
        workers: The number of processes. 1 means this process, and 0 means one worker per processor
            that this process may use. A container's CPU limit (``docker run --cpus``) is not
            detected, so set a number in a container.

    Raises:
        ConfigError: *workers* is less than 0.
    """

    def __init__(self, *, workers: int = 1) -> None:
        if workers < 0:
            allowed = "a whole number (0 means one per processor)"
            raise ConfigError(
                f"workers must be {allowed}", path="workers", value=workers, allowed=allowed
            )
        self.workers: Final = workers or count_processors()
        self._pools: list[_WorkerPool] = []

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """Yield the result of each batch, in the order in which batches finish.

        *build* returns the function that processes a batch. With several workers, at most `AHEAD`
        batches per worker are read in advance, and *build*, batches and results are pickled. After
        a failure, results that have already arrived are yielded before the exception is raised.

        Raises:
            EngineError: A worker has crashed, or an object cannot be pickled.
            Exception: Any exception of the function that *build* returns.
        """
        if self.workers == 1:
            return map(build(), batches)
        return self._distribute(_pickle_value(build), copy_worker_environment(build), batches)

    def close(self) -> None:
        """Stop the workers at once, even in the middle of a batch.

        You can use the engine again afterwards, and close it more than once.
        """
        for pool in list(self._pools):
            pool.end()

    def _distribute(
        self, build: bytes, environment: Mapping[str, str], batches: Iterable[Any]
    ) -> Iterator[Any]:
        pool = _WorkerPool(build, environment, self.workers)
        self._pools.append(pool)
        rest, pending_count = iter(batches), 0
        try:
            while True:
                for batch in islice(rest, AHEAD * self.workers - pending_count):
                    pool.put(_pickle_value(batch))
                    pending_count += 1
                if not pending_count:
                    return
                yield pool.get()
                pending_count -= 1
        except Exception:
            yield from pool.take_done()
            raise
        finally:
            self._pools.remove(pool)
            pool.end()


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _WorkerPool:
    """The worker processes of one run; each new batch starts a worker, up to *size* workers."""

    def __init__(self, build: bytes, environment: Mapping[str, str], size: int) -> None:
        self._build = build
        self._environment = environment
        self._size = size
        self._workers: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
        self._todo: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[bytes | EngineError] = queue.SimpleQueue()
        self._is_over = False

    def put(self, payload: bytes) -> None:
        """Queue the pickled batch *payload* for the workers."""
        if self._is_over:
            raise EngineError("the engine was closed while the work was running")
        self._todo.put(payload)
        if len(self._workers) < self._size:
            self._start_worker()

    def get(self) -> Any:
        """Wait for the next result and return it.

        Raises the exception of the batch, or `EngineError` if a worker crashed.
        """
        return _read_result(self._done.get())

    def take_done(self) -> Iterator[Any]:
        """Yield the results that have already arrived; skip batches that failed."""
        with suppress(queue.Empty):
            while True:
                reply = self._done.get_nowait()
                with suppress(Exception):
                    result = _read_result(reply)
                    yield result

    def end(self) -> None:
        """Stop the workers at once, even in the middle of a batch."""
        self._is_over = True
        for process, _ in self._workers:
            process.kill()
            self._todo.put(None)
        for process, thread in self._workers:
            # A thread cannot be joined if Ctrl-C came before it was started.
            with suppress(RuntimeError):
                thread.join()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def _start_worker(self) -> None:
        paths = json.dumps([str(path) for path in sys.path])
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, paths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**self._environment, **_ONE_THREAD},
                # In its own group the worker gets no Ctrl-C of the terminal: this process ends it.
                process_group=0,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            raise EngineError(f"no worker can be started: {error}") from error
        # A daemon thread: the threads of a pool would keep the interpreter from ending during a
        # run.
        thread = threading.Thread(
            target=self._send_batches, args=(process,), name="qtmiddleware-worker", daemon=True
        )
        self._workers.append((process, thread))
        thread.start()

    def _send_batches(self, process: subprocess.Popen[bytes]) -> None:
        """Send queued batches to *process*, one at a time, and queue its results.

        Ends when the pool is closed. If *process* crashes, an `EngineError` is queued instead.
        """
        payload: bytes | None = self._build
        while payload is not None:
            try:
                pickle.dump(payload, process.stdin)  # type: ignore[arg-type]
                process.stdin.flush()  # type: ignore[union-attr]
                if payload is not self._build:
                    self._done.put(pickle.load(process.stdout))  # type: ignore[arg-type]
            except Exception:
                # The caller waits for this batch, so it must learn of any failure. A worker that
                # ends by itself is given time to report its exit code.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_SECONDS)
                process.kill()
                self._done.put(self._explain_death(process.wait()))
                return
            payload = self._todo.get()

    def _explain_death(self, code: int) -> EngineError:
        if self._is_over:
            return EngineError("the engine was closed while the work was running")
        cause = f"ended with code {code}; its output is on standard error"
        if code < 0:
            cause = (
                f"was ended by signal {-code}, which happens if memory runs out: use fewer workers"
                " or more memory"
            )
        return EngineError(
            f"one of {self._size} workers {cause}. Finished work is kept; run the same command"
            " again"
        )


def _read_result(reply: bytes | EngineError) -> Any:
    if isinstance(reply, EngineError):
        raise reply
    outcome: Outcome = pickle.loads(reply)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


class _Pickler(pickle.Pickler):
    """A pickler that rejects classes and functions defined in the user's script.

    Workers do not run the script, so they could not find these classes and functions.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise EngineError(
                f"{value.__qualname__} cannot be sent to a worker: it is defined in the script or"
                " notebook itself; move it to a module and import it, or use one worker"
            )
        return NotImplemented


def _pickle_value(value: Any) -> bytes:
    """Pickle *value* for a worker; raises `EngineError` if *value* cannot be pickled."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except EngineError:
        raise
    except Exception as error:
        name = getattr(value, "__qualname__", type(value).__qualname__)
        raise EngineError(f"{name} cannot be sent to a worker ({error}); use one worker") from error
    return buffer.getvalue()


def serve() -> None:
    """Process batches from standard input, and write the results to standard output.

    Runs in each worker process, until the parent process ends or kills the worker.
    """
    requests, replies = _take_pipes()
    todo: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_queue_messages, args=(requests, todo), daemon=True).start()
    build, work = todo.get(), None
    while True:
        payload = todo.get()
        try:
            work = work or pickle.loads(build)()
            outcome = Outcome(0, work(pickle.loads(payload)))
        except Exception as error:
            outcome = Outcome(0, error=error)
        pickle.dump(outcome.dump(), replies)
        replies.flush()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return two pipes: one to read from the parent process, and one to write to it.

    They replace standard input, which is empty afterwards, and standard output. Text that is
    printed later goes to standard error.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _queue_messages(requests: BinaryIO, todo: queue.SimpleQueue[bytes]) -> None:
    """Put each message from *requests* into *todo*; exit when the parent process has ended.

    Exits at once, even in the middle of a batch.
    """
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            todo.put(pickle.load(requests))
    os._exit(1)
