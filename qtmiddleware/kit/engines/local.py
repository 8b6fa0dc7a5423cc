"""Batches of work on this machine: in this process, or in several.

Workers are Python processes that are started anew and told by pipes what to do. Nothing runs the
user's script in them, so one without ``if __name__ == "__main__"`` does no harm, and a notebook
does as well as a script:

    todo -> a thread for each worker -> (pipe) worker (pipe) -> the same thread -> done

Not `concurrent.futures.ProcessPoolExecutor`: it runs the script again, has no way to end a worker
that is busy before Python 3.14, and may hang where one dies while a large batch is sent to it
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
"""Batches for each worker that are taken and not done: one it is at, the others so that none waits for the source."""
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Each worker has a core, so what it computes with is held to one; read when numpy is loaded."""
_ENDING_SECONDS: Final = 10.0
"""How long a worker that has closed its pipes may take to end."""
# The folder one is in must not decide what is imported, so modules are looked for where this
# process found its own.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from qtmiddleware.kit.engines.local import serve; serve()"
)


class LocalEngine:
    """Does the work in this process, or in *workers* processes of this machine with one thread of arithmetic each.

    0 is one worker for each processor that this process may use. A container's quota of processor
    time (``docker run --cpus``) is not seen in that: give a number there. Each worker holds what it
    works with, such as the weights of a model, in memory of its own.

    Raises `ConfigError` for less than 0.
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
        """What the function that *build* makes returns for each of *batches*, as they are done, in any order.

        With several workers at most `AHEAD` batches a worker are taken ahead of what is done, and
        *build*, batches and results are pickled. Where something fails, what was done until then
        comes first. Raises what the function raises, and `EngineError` where a worker dies, or what
        is to be sent cannot be pickled.
        """
        if self.workers == 1:
            return map(build(), batches)
        return self._share(_dump(build), copy_environment_for(build), batches)

    def close(self) -> None:
        """End the workers, and what they are at; the engine may be used again. Closing twice does no harm."""
        for crew in list(self._crews):
            crew.end()

    def _share(
        self, build: bytes, environment: Mapping[str, str], batches: Iterable[Any]
    ) -> Iterator[Any]:
        crew = _Crew(build, environment, self.workers)
        self._crews.append(crew)
        rest, waiting = iter(batches), 0
        try:
            while True:
                for batch in islice(rest, AHEAD * self.workers - waiting):
                    crew.put(_dump(batch))
                    waiting += 1
                if not waiting:
                    return
                yield crew.get()
                waiting -= 1
        except Exception:
            yield from crew.take_done()
            raise
        finally:
            self._crews.remove(crew)
            crew.end()


def count_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Crew:
    """The workers of one run, started as there are batches for them."""

    def __init__(self, build: bytes, environment: Mapping[str, str], size: int) -> None:
        self._build = build
        self._environment = environment
        self._size = size
        self._members: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
        self._todo: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[bytes | EngineError] = queue.SimpleQueue()
        self._is_over = False

    def put(self, payload: bytes) -> None:
        """Have this batch done."""
        if self._is_over:
            raise EngineError("the engine was closed while the work was running")
        self._todo.put(payload)
        if len(self._members) < self._size:
            self._start_member()

    def get(self) -> Any:
        """The next result, as soon as there is one; raises what the work, or the end of a worker, raises."""
        return _open(self._done.get())

    def take_done(self) -> Iterator[Any]:
        """The results that are there; other batches that failed are left out."""
        with suppress(queue.Empty):
            while True:
                done = self._done.get_nowait()
                with suppress(Exception):
                    result = _open(done)
                    yield result

    def end(self) -> None:
        """End the workers at once, whatever they are at."""
        self._is_over = True
        for process, _ in self._members:
            process.kill()
            self._todo.put(None)
        for process, thread in self._members:
            # One that Ctrl-C came before was never started.
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
                # A terminal's Ctrl-C is for this process, which ends its workers.
                process_group=0,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            raise EngineError(f"no worker can be started: {error}") from error
        # Threads of a pool would keep the interpreter from ending while a run is left half done.
        thread = threading.Thread(
            target=self._drive, args=(process,), name="qtmiddleware-worker", daemon=True
        )
        self._members.append((process, thread))
        thread.start()

    def _drive(self, process: subprocess.Popen[bytes]) -> None:
        """Give batches to *process*, one at a time."""
        payload: bytes | None = self._build
        while payload is not None:
            try:
                pickle.dump(payload, process.stdin)  # type: ignore[arg-type]
                process.stdin.flush()  # type: ignore[union-attr]
                if payload is not self._build:
                    self._done.put(pickle.load(process.stdout))  # type: ignore[arg-type]
            except Exception:
                # Who waits for the batch must hear of it, whatever it was. A worker that ends by
                # itself says how.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_SECONDS)
                process.kill()
                self._done.put(self._explain_death(process.wait()))
                return
            payload = self._todo.get()

    def _explain_death(self, code: int) -> EngineError:
        if self._is_over:
            return EngineError("the engine was closed while the work was running")
        how = f"ended with code {code}; its output is on standard error"
        if code < 0:
            how = (
                f"was ended by signal {-code}, which happens if memory runs out: use fewer workers"
                " or more memory"
            )
        return EngineError(
            f"one of {self._size} workers {how}. Finished work is kept; run the same command again"
        )


def _open(done: bytes | EngineError) -> Any:
    if isinstance(done, EngineError):
        raise done
    outcome: Outcome = pickle.loads(done)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


class _Pickler(pickle.Pickler):
    """Refuses what a worker would look for in vain: it does not run the script that this process runs."""

    def reducer_override(self, it: Any) -> Any:
        if isinstance(it, type | FunctionType) and it.__module__ == "__main__":
            raise EngineError(
                f"{it.__qualname__} cannot be sent to a worker: it is defined in the script or"
                " notebook itself; move it to a module and import it, or use one worker"
            )
        return NotImplemented


def _dump(it: Any) -> bytes:
    """Pickled for a worker."""
    written = io.BytesIO()
    try:
        _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(it)
    except EngineError:
        raise
    except Exception as error:
        name = getattr(it, "__qualname__", type(it).__qualname__)
        raise EngineError(f"{name} cannot be sent to a worker ({error}); use one worker") from error
    return written.getvalue()


def serve() -> None:
    """Be a worker: do what comes by the standard input, until this process is killed or its parent is gone."""
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
    """The pipes for ourselves: what is printed here goes to the standard error, and what is read is empty."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _receive(requests: BinaryIO, todo: queue.SimpleQueue[bytes]) -> None:
    """Put what comes into *todo*; ends this process as soon as the one that sends is gone, whatever it is at."""
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            todo.put(pickle.load(requests))
    os._exit(1)
