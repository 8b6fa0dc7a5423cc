"""Perform batches of work on this machine: in this process, or in several.

Workers are new Python processes that receive batches by pipes. The user's script is not run in
them, so a script without ``if __name__ == "__main__"`` does no harm, and a notebook works like a
script:

    todo -> a thread per worker -> (pipe) worker (pipe) -> the same thread -> done

`concurrent.futures.ProcessPoolExecutor` is not used, because it runs the script again, cannot end a
busy worker before Python 3.14, and may hang if a worker dies while a large batch is sent to it
(before Python 3.11.5).
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
from qtmiddleware.runtime.environment import copy_environment_for

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
    """Performs the work in this process, or in *workers* processes of this machine.

    Each worker process uses one thread for arithmetic, and holds what it works with, such as a
    model's weights, in memory of its own.

    Args:
        workers: How many processes; 1 is this process. 0 is one worker per processor that this
            process may use; it does not see a container's limit of processor time (``docker run
            --cpus``), so give a number there.

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
        self._crews: list[_Crew] = []

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """Yield the results of the function that *build* makes, in the order in which batches end.

        With several workers at most `AHEAD` batches per worker are taken ahead, and *build*,
        batches and results are pickled. If something fails, the results so far come first. Raises
        what the function raises, and `EngineError` if a worker dies or something cannot be pickled.
        """
        if self.workers == 1:
            return map(build(), batches)
        return self._distribute(_dump(build), copy_environment_for(build), batches)

    def close(self) -> None:
        """End the workers at once, even in the middle of a batch.

        The engine can be used again. Closing twice does no harm.
        """
        for crew in list(self._crews):
            crew.end()

    def _distribute(
        self, build: bytes, environment: Mapping[str, str], batches: Iterable[Any]
    ) -> Iterator[Any]:
        crew = _Crew(build, environment, self.workers)
        self._crews.append(crew)
        rest, pending_count = iter(batches), 0
        try:
            while True:
                for batch in islice(rest, AHEAD * self.workers - pending_count):
                    crew.put(_dump(batch))
                    pending_count += 1
                if not pending_count:
                    return
                yield crew.get()
                pending_count -= 1
        except Exception:
            yield from crew.take_done()
            raise
        finally:
            self._crews.remove(crew)
            crew.end()


def count_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Crew:
    """The workers of one run, each started when there is a batch for it."""

    def __init__(self, build: bytes, environment: Mapping[str, str], size: int) -> None:
        self._build = build
        self._environment = environment
        self._size = size
        self._members: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
        self._todo: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[bytes | EngineError] = queue.SimpleQueue()
        self._is_over = False

    def put(self, payload: bytes) -> None:
        """Give the pickled batch *payload* to the workers."""
        if self._is_over:
            raise EngineError("the engine was closed while the work was running")
        self._todo.put(payload)
        if len(self._members) < self._size:
            self._start_member()

    def get(self) -> Any:
        """Wait for the next result and return it.

        Raises the exception of the work, or `EngineError` if a worker died.
        """
        return _read_result(self._done.get())

    def take_done(self) -> Iterator[Any]:
        """Yield the results that have arrived already; failed batches are left out."""
        with suppress(queue.Empty):
            while True:
                reply = self._done.get_nowait()
                with suppress(Exception):
                    result = _read_result(reply)
                    yield result

    def end(self) -> None:
        """End the workers at once, even in the middle of a batch."""
        self._is_over = True
        for process, _ in self._members:
            process.kill()
            self._todo.put(None)
        for process, thread in self._members:
            # A thread cannot be joined if Ctrl-C came before it was started.
            with suppress(RuntimeError):
                thread.join()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def _start_member(self) -> None:
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
            target=self._drive, args=(process,), name="qtmiddleware-worker", daemon=True
        )
        self._members.append((process, thread))
        thread.start()

    def _drive(self, process: subprocess.Popen[bytes]) -> None:
        """Give batches to *process*, one at a time, until there are no more."""
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
    """A pickler that rejects classes and functions of the script itself.

    A worker does not run the script, so it would not find them.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise EngineError(
                f"{value.__qualname__} cannot be sent to a worker: it is defined in the script or"
                " notebook itself; move it to a module and import it, or use one worker"
            )
        return NotImplemented


def _dump(value: Any) -> bytes:
    """Return *value* pickled for a worker; raise `EngineError` if it cannot be pickled."""
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
    """Be a worker: perform the batches from standard input until the parent process is gone.

    The parent may also kill this process.
    """
    requests, replies = _take_pipes()
    todo: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, todo), daemon=True).start()
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
    """Return this process's pipes from and to its parent.

    Afterwards, printed text goes to standard error, and standard input is empty.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _receive(requests: BinaryIO, todo: queue.SimpleQueue[bytes]) -> None:
    """Put each message into *todo*; end this process as soon as the sender is gone.

    The process ends even in the middle of a batch.
    """
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            todo.put(pickle.load(requests))
    os._exit(1)
