"""Run batches of work on a Ray cluster, on this machine or at ``RAY_ADDRESS``.

Each run uses one Ray dataset, so its actors are created only once. The driver puts batches into the
feed, an actor that stores unfinished batches. The source, a Ray task, yields the batches' numbers:

    driver -> feed -> source (a task) -> map_batches (a pool of actors) -> driver

If an actor dies, Ray creates a new actor and repeats the batch. If the source dies, Ray restarts
the source at the first batch, and the feed knows which batches are done. If a result arrives twice,
the second copy is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from qtmiddleware.errors import EngineError, MissingExtra
from qtmiddleware.kit.engines.outcome import Outcome

B = TypeVar("B")
R = TypeVar("R")

AHEAD: Final = 3
"""The maximum number of unfinished batches per worker.

A worker processes one batch. A second batch waits at the worker, and a third is being sent.
"""
RETRIES: Final = 3
"""The maximum number of retries of a batch whose worker died."""
_ADVICE: Final = (
    "check the memory, and that this package is on every machine. Finished work is kept; run the"
    " same command again"
)
_STORE_BYTES: Final = 256 << 20
"""The size in bytes of the shared memory for batches, in a cluster that this engine starts."""
_RAY_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
}


class RayEngine:
    """Runs batches of work on a Ray cluster, in actors of one processor each.

    If this process is already connected to a cluster, the engine uses that cluster and leaves it
    running. Otherwise, the engine connects to the cluster at *address*. If there is no address, the
    engine starts a cluster on this machine, and `close` stops it. Only the current user can access
    that cluster's files and sockets. The cluster's ports listen on all interfaces and require the
    token in ``~/.ray/auth_token``.

    On a cluster of several machines, install the same version of this package on each machine. Set
    the API keys in each machine's environment, because this process does not send its environment.

    Args:
        workers: The number of actors; by default one per processor of the cluster.
        address: The cluster's address; by default the environment variable ``RAY_ADDRESS``.

    Raises:
        MissingExtra: The extra ``ray`` is missing at the first use.
        EngineError: At the first use, Ray cannot be started or reached, or ``RAY_AUTH_MODE`` is not
            ``token`` although the engine must start a cluster.
    """

    def __init__(self, *, workers: int | None = None, address: str | None = None) -> None:
        self._workers = workers
        self._address = address
        self._connected = False
        self._folder: TemporaryDirectory[str] | None = None

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """Yield the result of each batch, in the order in which the batches finish.

        *build* returns the function that processes a batch. If the function raises an exception,
        the run ends with that exception. At most `AHEAD` batches per worker are read in advance.
        Batches and results are pickled.

        If a worker dies, its batch is retried up to `RETRIES` times. Then `EngineError` is raised.
        """
        ray = self._connect_to_ray()
        workers = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        feed = ray.remote(num_cpus=0)(_Feed).remote()
        try:
            with closing(self._read_outcomes(_build_dataset(build, feed, workers))) as results:
                yield from _process_batches(feed, batches, results, AHEAD * workers)
        finally:
            ray.kill(feed)

    def close(self) -> None:
        """Stop the cluster if this engine started it, else disconnect from it.

        You can use the engine again afterwards, and close it more than once.
        """
        if self._connected:
            import ray

            self._connected = False
            ray.shutdown()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _connect_to_ray(self) -> Any:
        # Ray reads these variables on import, and so do the processes that it starts. `setdefault`
        # keeps the user's own values.
        for name, value in _RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise MissingExtra("ray", "ray") from error
        if not ray.is_initialized():
            address = self._address or os.environ.get("RAY_ADDRESS") or "local"
            options = self._build_cluster_options() if address == "local" else {}
            try:
                ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, **options
                )
            except Exception as error:
                self.close()
                action = (
                    "started on this machine" if address == "local" else f"reached at {address}"
                )
                raise EngineError(f"Ray cannot be {action}: {error}") from error
            self._connected = True
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        return ray

    def _build_cluster_options(self) -> dict[str, Any]:
        """Return the Ray options for a cluster on this machine that other users cannot access.

        Creates the cluster's folder and token file. Raises `EngineError` if ``RAY_AUTH_MODE`` turns
        off the token.
        """
        if (mode := os.environ.get("RAY_AUTH_MODE", "token")).lower() != "token":
            raise EngineError(
                f"RAY_AUTH_MODE must be token, not {mode}, for a cluster that is started here: it"
                " listens on all interfaces and runs what it is sent. Unset it, or start Ray"
                " yourself and set RAY_ADDRESS"
            )
        with suppress(OSError):
            _create_private_token()
        # Ray's default folder, with its sockets, is writable for everybody, so a private one is
        # made. A socket's path has at most 107 characters, so the folder is directly in /tmp.
        base = Path("/tmp")
        self._folder = TemporaryDirectory(
            prefix="qtm-", dir=base if base.is_dir() else None, ignore_cleanup_errors=True
        )
        return {
            "num_cpus": self._workers,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_temp_dir": str(Path(self._folder.name, "ray")),
            # The cluster imports from the paths of this process: the current folder must not decide
            # what is imported.
            "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}},
        }

    @staticmethod
    def _read_outcomes(dataset: Any) -> Generator[Outcome, None, None]:
        """Yield the outcome of each batch in *dataset* as it arrives.

        Raises `EngineError` if Ray ends the run.
        """
        from ray.exceptions import RayError

        try:
            # Prefetching could wait forever, because the driver adds the next batch only after it
            # has read this outcome.
            for table in dataset.iter_batches(
                batch_size=1, batch_format="pyarrow", prefetch_batches=0
            ):
                yield pickle.loads(table["outcome"][0].as_py())
        except RayError as error:
            raise EngineError(f"Ray ended the run ({type(error).__name__}): {_ADVICE}") from error


def _create_private_token() -> None:
    """Create Ray's token file if it is missing, and let only its owner read it."""
    # Ray itself creates a file that everybody can read.
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError), open(path, "x", opener=partial(os.open, mode=0o600)) as file:
        file.write(secrets.token_hex(32))
    path.chmod(0o600)


class _Feed:
    """A Ray actor that stores the unfinished batches, pickled and numbered."""

    def __init__(self) -> None:
        self._payloads: dict[int, bytes] = {}
        self._attempts: Counter[int] = Counter()
        self._added_count = 0
        self._is_closed = False
        self._changed = asyncio.Condition()

    async def put_batch(self, pickled_batch: bytes) -> None:
        """Store *pickled_batch* under the next number. Batches are numbered from 0."""
        async with self._changed:
            self._payloads[self._added_count] = pickled_batch
            self._added_count += 1
            self._changed.notify_all()

    async def end_feed(self) -> None:
        """Record that the last batch was added."""
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    async def drop_batch(self, batch_number: int) -> None:
        """Remove the finished batch with the number *batch_number*."""
        self._payloads.pop(batch_number, None)

    async def wait_for_batch(self, batch_number: int) -> bool:
        """Return ``True`` as soon as the batch with the number *batch_number* is added.

        Returns ``False`` if there is no such batch, because the feed has ended.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: batch_number < self._added_count or self._is_closed
            )
        return batch_number < self._added_count

    async def take_batch_and_death_count(self, batch_number: int) -> tuple[bytes, int]:
        """Return the pickled batch *batch_number*, and how many workers died while processing it.

        If the batch is already done, the bytes are empty.
        """
        pickled_batch = self._payloads.get(batch_number, b"")
        self._attempts[batch_number] += 1
        return pickled_batch, self._attempts[batch_number] - 1


class _Source:
    """Yields one table per batch in *feed*, with the batch's number in a single row.

    If Ray restarts this task, the task begins again at batch 0.
    """

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __call__(self, _: Any) -> Iterator[Any]:
        import pyarrow as pa
        import ray

        number = 0
        while ray.get(self._feed.wait_for_batch.remote(number)):
            yield pa.table({"number": [number]})
            number += 1


class _Worker:
    """Processes the batches of *feed* in a Ray actor.

    Errors are returned rather than raised, because Ray logs the messages of raised errors.
    """

    def __init__(self, build: Callable[[], Callable[[Any], Any]], feed: Any) -> None:
        self._build = build
        self._feed = feed
        self._work: Callable[[Any], Any] | None = None

    def __call__(self, table: Any) -> Any:
        import pyarrow as pa
        import ray

        batch_number = table["number"][0].as_py()
        pickled_batch, deaths = ray.get(self._feed.take_batch_and_death_count.remote(batch_number))
        outcome: Outcome = Outcome(batch_number)
        if deaths > RETRIES:
            outcome = Outcome(
                batch_number,
                error=EngineError(f"{deaths} workers crashed on the same batch: {_ADVICE}"),
            )
        elif pickled_batch:
            outcome = self._process_batch(batch_number, pickled_batch)
        return pa.table({"outcome": pa.array([outcome.pickle_outcome()], pa.large_binary())})

    def _process_batch(self, batch_number: int, pickled_batch: bytes) -> Outcome:
        try:
            self._work = self._work or self._build()
            return Outcome(batch_number, self._work(pickle.loads(pickled_batch)))
        except Exception as error:
            return Outcome(batch_number, error=error)


def _build_dataset(build: Callable[[], Callable[[Any], Any]], feed: Any, worker_count: int) -> Any:
    """Return a Ray dataset that processes the batches of *feed* in *worker_count* actors.

    Each row is the outcome of one batch.
    """
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    # With blocks of one row, each row is passed on at once instead of being collected.
    context.target_max_block_size = 1
    with DataContext.current(context):
        return (
            ray.data.from_items([0])
            .map_batches(_Source(feed), batch_format="pyarrow", num_cpus=0)
            .map_batches(
                _Worker,
                fn_constructor_kwargs={"build": build, "feed": feed},
                compute=ActorPoolStrategy(size=worker_count, max_tasks_in_flight_per_actor=2),
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=1,
            )
        )


def _process_batches(
    feed: Any, batches: Iterable[Any], outcomes: Iterator[Outcome], max_pending_batches: int
) -> Iterator[Any]:
    """Put *batches* into *feed*, and yield the results from *outcomes*.

    At most *max_pending_batches* batches are unfinished at a time. If a batch fails, its exception
    is raised.
    """
    pending: set[int] = set()
    added_count = 0
    remaining_batches = iter(batches)
    while True:
        for batch in islice(remaining_batches, max_pending_batches - len(pending)):
            feed.put_batch.remote(pickle.dumps(batch))
            pending.add(added_count)
            added_count += 1
        if not pending:
            # Only this ends the source, and with it the dataset.
            feed.end_feed.remote()
            return
        outcome = next(outcomes)
        # A restarted source repeats old numbers, whose outcomes are ignored.
        if outcome.number in pending:
            if outcome.error is not None:
                raise outcome.error
            pending.discard(outcome.number)
            feed.drop_batch.remote(outcome.number)
            yield outcome.result
