"""Batches of work on a Ray cluster: one of this machine, or the one at ``RAY_ADDRESS``.

One dataset of Ray Data lasts for a whole run, so its actors are made once. Its source waits for
what the driver puts
into a feed, an actor that holds the few batches that are given and not done:

    driver -> feed -> source (a task) -> map_batches (a pool of actors) -> driver

An actor that dies is made anew by Ray and its batch done again; a source that dies begins at the
first batch and finds those that are done marked so. A result that comes twice is taken once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import secrets
import sys
import warnings
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
"""Batches for each worker that are taken and not done: one it is at, one that waits beside it, one on the way."""
RETRIES: Final = 3
"""How often a batch whose worker died is done again."""
_ADVICE: Final = (
    "check the memory, and that this package is on every machine. Finished work is kept; run the"
    " same command again"
)
_STORE_BYTES: Final = 256 << 20
"""What a cluster of our own shares among its processes; only the batches on the way lie there."""
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
}


class RayEngine:
    """Does the work by ``map_batches`` of Ray Data, in *workers* actors of one processor each.

    *address* is that of a cluster, else ``RAY_ADDRESS``; without either a cluster on this machine
    is started, and ended by `close`. One that this process is connected to already is used and
    stays. Without *workers* there is one for each processor of the cluster.

    On a cluster of several machines this package must be installed on each, in the same version,
    and the keys that the work needs must stand in the environment there; nothing of this process's
    environment is sent.

    A cluster that is started here keeps its files and sockets in a folder of its own, which only
    this account can enter. Its ports listen on all interfaces and ask for the token in
    ``~/.ray/auth_token``.

    Raises on use `MissingExtra` without the extra ``ray`` and `EngineError` where Ray cannot be
    started or reached, or ``RAY_AUTH_MODE`` turns the token off for a cluster that would be started
    here.
    """

    def __init__(self, *, workers: int | None = None, address: str | None = None) -> None:
        self._workers = workers
        self._address = address
        self._connected = False
        self._folder: TemporaryDirectory[str] | None = None

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """What the function that *build* makes returns for each of *batches*, as they are done, in any order.

        At most `AHEAD` batches a worker are taken ahead of what is done. Batches and results are
        pickled. What the function raises is raised here. A batch whose worker dies is done again,
        up to `RETRIES` times; then `EngineError` is raised.
        """
        ray = self._connect()
        workers = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        feed = ray.remote(num_cpus=0)(_Feed).remote()
        try:
            with closing(self._stream(_build_dataset(build, feed, workers))) as results:
                yield from _exchange(feed, batches, results, AHEAD * workers)
        finally:
            ray.kill(feed)

    def close(self) -> None:
        """End the cluster that was started here, or the connection that was made; closing twice does no harm."""
        if self._connected:
            import ray

            self._connected = False
            ray.shutdown()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _connect(self) -> Any:
        # Read when Ray is imported and by the processes it starts; who has set one of them means
        # it.
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise MissingExtra("ray", "ray") from error
        if not ray.is_initialized():
            address = self._address or os.environ.get("RAY_ADDRESS") or "local"
            options = self._prepare_cluster() if address == "local" else {}
            try:
                # What is forked here is another program at once, so what LanceDB warns of cannot
                # come about.
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "lancedb fork", RuntimeWarning)
                    ray.init(
                        address=address, log_to_driver=False, logging_level=logging.ERROR, **options
                    )
            except Exception as error:
                self.close()
                doing = "started on this machine" if address == "local" else f"reached at {address}"
                raise EngineError(f"Ray cannot be {doing}: {error}") from error
            self._connected = True
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        return ray

    def _prepare_cluster(self) -> dict[str, Any]:
        """Return the options of a cluster on this machine, which no other account can get into."""
        if (mode := os.environ.get("RAY_AUTH_MODE", "token")).lower() != "token":
            raise EngineError(
                f"RAY_AUTH_MODE must be token, not {mode}, for a cluster that is started here: it"
                " listens on all interfaces and runs what it is sent. Unset it, or start Ray"
                " yourself and set RAY_ADDRESS"
            )
        with suppress(OSError):
            _protect_token()
        # Ray lets everybody write to its folder, and its sockets lie in that. Their paths may have
        # 107 characters.
        base = Path("/tmp")
        self._folder = TemporaryDirectory(
            prefix="qtm-", dir=base if base.is_dir() else None, ignore_cleanup_errors=True
        )
        return {
            "num_cpus": self._workers,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_temp_dir": str(Path(self._folder.name, "ray")),
            # The folder one is in must not decide what is imported there: modules are found where
            # this process does.
            "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}},
        }

    @staticmethod
    def _stream(dataset: Any) -> Generator[Outcome, None, None]:
        """The outcomes as they come."""
        from ray.exceptions import RayError

        try:
            # Nothing is fetched ahead: the next batch may only be given once this one is seen.
            for table in dataset.iter_batches(
                batch_size=1, batch_format="pyarrow", prefetch_batches=0
            ):
                yield pickle.loads(table["outcome"][0].as_py())
        except RayError as error:
            raise EngineError(f"Ray ended the run ({type(error).__name__}): {_ADVICE}") from error


def _protect_token() -> None:
    """Make the token of this account's clusters its owner's alone; Ray would write one that everybody can read."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError), open(path, "x", opener=partial(os.open, mode=0o600)) as file:
        file.write(secrets.token_hex(32))
    path.chmod(0o600)


class _Feed:
    """What the driver has given and nobody has done, by number; an actor of its own."""

    def __init__(self) -> None:
        self._payloads: dict[int, bytes] = {}
        self._attempts: Counter[int] = Counter()
        self._given = 0
        self._is_over = False
        self._changed = asyncio.Condition()

    async def put(self, payload: bytes) -> None:
        """The next batch."""
        async with self._changed:
            self._payloads[self._given] = payload
            self._given += 1
            self._changed.notify_all()

    async def end(self) -> None:
        """There are no more."""
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def drop(self, number: int) -> None:
        """*number* is done."""
        self._payloads.pop(number, None)

    async def has(self, number: int) -> bool:
        """Whether there is a batch *number*, as soon as that is known."""
        async with self._changed:
            await self._changed.wait_for(lambda: number < self._given or self._is_over)
        return number < self._given

    async def take(self, number: int) -> tuple[bytes, int]:
        """The payload of *number*, empty when it is done, and how often it was taken before."""
        payload = self._payloads.get(number, b"")
        self._attempts[number] += 1
        return payload, self._attempts[number] - 1


class _Source:
    """The numbers of a feed's batches, each in a table of its own; the same ones when it is run again."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __call__(self, _: Any) -> Iterator[Any]:
        import pyarrow as pa
        import ray

        number = 0
        while ray.get(self._feed.has.remote(number)):
            yield pa.table({"number": [number]})
            number += 1


class _Worker:
    """The work in an actor. Its errors are results too: Ray would log them, with what they say."""

    def __init__(self, build: Callable[[], Callable[[Any], Any]], feed: Any) -> None:
        self._build = build
        self._feed = feed
        self._work: Callable[[Any], Any] | None = None

    def __call__(self, table: Any) -> Any:
        import pyarrow as pa
        import ray

        number = table["number"][0].as_py()
        payload, deaths = ray.get(self._feed.take.remote(number))
        outcome: Outcome = Outcome(number)
        if deaths > RETRIES:
            outcome = Outcome(
                number, error=EngineError(f"{deaths} workers crashed on the same batch: {_ADVICE}")
            )
        elif payload:
            outcome = self._perform(number, payload)
        return pa.table({"outcome": pa.array([outcome.dump()], pa.large_binary())})

    def _perform(self, number: int, payload: bytes) -> Outcome:
        try:
            self._work = self._work or self._build()
            return Outcome(number, self._work(pickle.loads(payload)))
        except Exception as error:
            return Outcome(number, error=error)


def _build_dataset(build: Callable[[], Callable[[Any], Any]], feed: Any, workers: int) -> Any:
    """The dataset of all outcomes, one row a block."""
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    # Rows are not gathered: each goes on as soon as it is there.
    context.target_max_block_size = 1
    with DataContext.current(context):
        return (
            ray.data.from_items([0])
            .map_batches(_Source(feed), batch_format="pyarrow", num_cpus=0)
            .map_batches(
                _Worker,
                fn_constructor_kwargs={"build": build, "feed": feed},
                compute=ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=1,
            )
        )


def _exchange(
    feed: Any, batches: Iterable[Any], outcomes: Iterator[Outcome], ahead: int
) -> Iterator[Any]:
    """The results; gives *batches* as they come, at most *ahead* of them."""
    waiting: set[int] = set()
    given = 0
    rest = iter(batches)
    while True:
        for batch in islice(rest, ahead - len(waiting)):
            feed.put.remote(pickle.dumps(batch))
            waiting.add(given)
            given += 1
        if not waiting:
            # Nothing else can end the source, and with it the dataset.
            feed.end.remote()
            return
        outcome = next(outcomes)
        if outcome.number in waiting:
            if outcome.error is not None:
                raise outcome.error
            waiting.discard(outcome.number)
            feed.drop.remote(outcome.number)
            yield outcome.result
