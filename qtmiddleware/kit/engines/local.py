"""Run batches of work on this machine, in this process or in several processes.

Workers are new Python processes that receive batches through pipes. One thread per worker sends the
batches and receives the results:

    todo -> thread -> (pipe) worker (pipe) -> the same thread -> done

A worker does not run the user's script. So the script needs no ``if __name__ == "__main__"``, and
workers can also be used in notebooks.

`concurrent.futures.ProcessPoolExecutor` is not used, because its workers run the script again.
Before Python 3.14, the executor cannot stop a busy worker. Before Python 3.11.5, it may hang if a
worker crashes while it receives a large batch.
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
"""The maximum number of unfinished batches per worker.

A worker processes one batch. The others are queued, so that the worker always has a next batch.
"""
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The environment variables that limit numpy to one thread, because each worker has one core.

numpy reads them when it is loaded.
"""
_ENDING_SECONDS: Final = 10.0
"""The maximum time in seconds to wait for a worker's exit after it has closed its pipes."""
# The worker imports from the paths of this process: the current folder must not decide what is
# imported.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from qtmiddleware.kit.engines.local import serve; serve()"
)


class LocalEngine:
    """Runs batches of work in this process, or in *workers* processes on this machine.

    Each worker process computes with one thread, and has its own copy of large objects, such as a
    model's weights.

    Args:
        workers: The number of processes. 1 uses only this process. 0 uses one worker per processor
            that this process may use. In a container, set a number, because a CPU limit (``docker
            run --cpus``) is not detected.

    Raises:
        ConfigError: *workers* is negative.
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
        """Yield the result of each batch, in the order in which the batches finish.

        *build* returns the function that processes a batch. If there are several workers, at most
        `AHEAD` batches per worker are read in advance, and *build*, the batches and the results are
        pickled. If a batch fails, the results that have arrived are yielded before the exception is
        raised.

        Raises:
            EngineError: A worker crashed, or an object cannot be pickled.
            Exception: A batch failed. This is the exception of the function that *build* returned.
        """
        if self.workers == 1:
            return map(build(), batches)
        return self._distribute_batches(
            _pickle_value(build), copy_worker_environment(build), batches
        )

    def close(self) -> None:
        """Stop the workers at once, even in the middle of a batch.

        You can use the engine again afterwards, and close it more than once.
        """
        for pool in list(self._pools):
            pool.stop_workers()

    def _distribute_batches(
        self, pickled_build: bytes, environment: Mapping[str, str], batches: Iterable[Any]
    ) -> Iterator[Any]:
        pool = _WorkerPool(pickled_build, environment, self.workers)
        self._pools.append(pool)
        remaining_batches, pending_count = iter(batches), 0
        try:
            while True:
                for batch in islice(remaining_batches, AHEAD * self.workers - pending_count):
                    pool.put_batch(_pickle_value(batch))
                    pending_count += 1
                if not pending_count:
                    return
                yield pool.get_result()
                pending_count -= 1
        except Exception:
            # Finished work is not lost if a later batch fails.
            yield from pool.yield_finished_results()
            raise
        finally:
            self._pools.remove(pool)
            pool.stop_workers()


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _WorkerPool:
    """The worker processes of one run.

    Each of the first *worker_count* batches starts a worker. *pickled_build* is the pickled
    function that returns a worker's batch function.
    """

    def __init__(
        self, pickled_build: bytes, environment: Mapping[str, str], worker_count: int
    ) -> None:
        self._build = pickled_build
        self._environment = environment
        self._worker_count = worker_count
        self._workers: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
        self._todo: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[bytes | EngineError] = queue.SimpleQueue()
        self._is_closed = False

    def put_batch(self, pickled_batch: bytes) -> None:
        """Queue *pickled_batch* for the workers, and start another worker if the limit allows it.

        Raises `EngineError` if the workers were stopped or no worker can be started.
        """
        if self._is_closed:
            raise EngineError("the engine was closed while the work was running")
        self._todo.put(pickled_batch)
        if len(self._workers) < self._worker_count:
            self._start_worker()

    def get_result(self) -> Any:
        """Wait until a batch has finished, and return its result.

        Raises the batch's exception, or `EngineError` if the batch's worker crashed.
        """
        return _read_result(self._done.get())

    def yield_finished_results(self) -> Iterator[Any]:
        """Yield the results that have arrived, without waiting. Skip failed batches."""
        with suppress(queue.Empty):
            while True:
                reply = self._done.get_nowait()
                with suppress(Exception):
                    result = _read_result(reply)
                    yield result

    def stop_workers(self) -> None:
        """Stop the workers at once, even in the middle of a batch."""
        self._is_closed = True
        for process, _ in self._workers:
            process.kill()
            # This ends the worker's thread, which may be waiting for a batch.
            self._todo.put(None)
        for process, thread in self._workers:
            # A thread cannot be joined if Ctrl-C came before it was started.
            with suppress(RuntimeError):
                thread.join()
            process.wait()
            # A pipe may still hold bytes for the dead worker, which closing tries to write.
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
                # In its own group, the worker gets no Ctrl-C from the terminal. This process ends
                # the worker instead.
                process_group=0,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            raise EngineError(f"no worker can be started: {error}") from error
        # A daemon thread does not keep the interpreter from exiting during a run, as the threads of
        # a pool do.
        thread = threading.Thread(
            target=self._send_batches, args=(process,), name="qtmiddleware-worker", daemon=True
        )
        self._workers.append((process, thread))
        thread.start()

    def _send_batches(self, process: subprocess.Popen[bytes]) -> None:
        """Send the queued batches to *process*, one at a time, and queue the results.

        Returns when the workers are stopped. If *process* crashes, queues an `EngineError` instead
        of a result, and returns.
        """
        payload: bytes | None = self._build
        while payload is not None:
            try:
                pickle.dump(payload, process.stdin)  # type: ignore[arg-type]
                process.stdin.flush()  # type: ignore[union-attr]
                if payload is not self._build:
                    self._done.put(pickle.load(process.stdout))  # type: ignore[arg-type]
            except Exception:
                # The caller waits for this batch, so every failure must reach it. A worker that
                # exits by itself gets time to report its exit code.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_SECONDS)
                process.kill()
                self._done.put(self._build_exit_error(process.wait()))
                return
            payload = self._todo.get()

    def _build_exit_error(self, exit_code: int) -> EngineError:
        if self._is_closed:
            return EngineError("the engine was closed while the work was running")
        cause = f"ended with code {exit_code}; its output is on standard error"
        if exit_code < 0:
            cause = (
                f"was ended by signal {-exit_code}, which happens if memory runs out: use fewer"
                " workers or more memory"
            )
        return EngineError(
            f"one of {self._worker_count} workers {cause}. Finished work is kept; run the same"
            " command again"
        )


def _read_result(reply: bytes | EngineError) -> Any:
    if isinstance(reply, EngineError):
        raise reply
    outcome: Outcome = pickle.loads(reply)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


class _Pickler(pickle.Pickler):
    """A pickler that rejects the classes and functions of the user's script.

    Workers do not run the script, so they cannot find its classes and functions.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise EngineError(
                f"{value.__qualname__} cannot be sent to a worker: it is defined in the script or"
                " notebook itself; move it to a module and import it, or use one worker"
            )
        return NotImplemented


def _pickle_value(value: Any) -> bytes:
    """Pickle *value* for a worker. Raise `EngineError` if it cannot be pickled."""
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

    This is the main function of each worker process. It runs until the parent process exits or
    kills the worker.
    """
    requests, replies = _take_standard_pipes()
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
        pickle.dump(outcome.pickle_outcome(), replies)
        replies.flush()


def _take_standard_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipe that reads from the parent process, and the pipe that writes to the parent.

    Afterwards, this process's standard input is empty, and its standard output goes to standard
    error.
    """
    # A library's `print` would otherwise write into the results.
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _queue_messages(requests: BinaryIO, message_queue: queue.SimpleQueue[bytes]) -> None:
    """Put each message from the pipe *requests* into *message_queue*.

    When the parent process has ended, this process exits at once, even in the middle of a batch.
    """
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            message_queue.put(pickle.load(requests))
    os._exit(1)
