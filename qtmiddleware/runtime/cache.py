"""Cache transformed questions in this process and, if the user passes one, in a shared cache."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from time import monotonic
from typing import Any, Final

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.config.settings import CacheSettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import Cache
from qtmiddleware.runtime.concurrency import IO
from qtmiddleware.runtime.forking import make_lock, register_fork_reset
from qtmiddleware.types import Deadline, Degradation, Transformation

MAX_ENTRIES: Final = 1_024
"""The number of transformations that are kept."""
MAX_SECONDS: Final = 0.25
"""How long a question waits for a read, and for a write, in seconds."""


class TransformationCache:
    """The transformations that one middleware has cached or is making now. Thread-safe.

    Callers who need the same transformation at the same time share a flight: one of them, the
    leader, makes it for all. The callers may use different event loops.

    Attributes:
        options: The settings, such as the time for which a transformation is kept.
        shared: A cache that several processes share; ``None`` if there is none.
        hits, misses: How often `get` returned a transformation and ``None``.
    """

    def __init__(
        self,
        options: CacheSettings,
        shared: SharedCache | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.options = options
        self.shared = shared
        self.hits = self.misses = 0
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, Transformation]] = OrderedDict()
        self._lock = make_lock()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Forget all flights after a fork, because their leaders are in the parent process."""
        # By key: the flight, and until when its leader may take.
        self._flights: dict[Hashable, tuple[Future[Any], float]] = {}

    def get(self, key: Hashable, *, is_counted: bool = True) -> Transformation | None:
        """Return what is stored under *key*; ``None`` if there is nothing or it has expired."""
        with self._lock:
            since, transformation = self._entries.pop(key, (float("-inf"), None))
            is_hit = since + self.options.ttl_seconds > self._clock()
            if is_counted:
                self.hits += is_hit
                self.misses += not is_hit
            if not is_hit or transformation is None:
                return None
            # The first entry is always the least recently used one.
            self._entries[key] = since, transformation
            return transformation

    def put(self, key: Hashable, transformation: Transformation) -> None:
        """Store *transformation* under *key*."""
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = self._clock(), transformation
            while len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)

    def join_flight(self, key: Hashable, latest: float) -> tuple[Future[Any], bool]:
        """Return the flight for *key*, and whether the caller leads it and has to land it.

        A leader may take until *latest*. An overdue leader was stopped, for example with its event
        loop, so the next caller leads a new flight.
        """
        with self._lock:
            flight, end = self._flights.get(key, (None, 0.0))
            if flight is not None and monotonic() < end:
                return flight, False
            flight = Future()
            self._flights[key] = flight, latest
            return flight, True

    def land_flight(self, key: Hashable, flight: Future[Any], result: Any) -> None:
        """End *flight* and give *result* to its followers; ``None`` if the leader gave up.

        After ``None``, a follower may become the leader.
        """
        with self._lock:
            # If this flight was overdue, another caller may lead a new one. The new one stays.
            if self._flights.get(key, (None,))[0] is flight:
                del self._flights[key]
        flight.set_result(result)


async def follow_flight(flight: Future[Any], io: IO, deadline: Deadline) -> Any:
    """Return the leader's result; ``None`` if the leader gave up or is not done in time."""
    mailbox = io.mailbox()
    flight.add_done_callback(lambda _: mailbox.put(flight.result()))
    with suppress(TimeoutError):
        return await mailbox.get(deadline)
    return None


class SharedCache:
    """A cache that several processes share.

    A question waits at most `MAX_SECONDS`, and a quarter of the time that is left for the model.
    After a failure or a late call, no question uses the cache for *pause_seconds*. An entry stays
    for *ttl_seconds*. Problems are added to *degradations*.
    """

    def __init__(self, cache: Cache, ttl_seconds: int, pause_seconds: float) -> None:
        if not (callable(getattr(cache, "get", None)) and callable(getattr(cache, "set", None))):
            raise ConfigError(
                "cache= must be an object with get(key) and set(key, value, seconds), not"
                f" {type(cache).__name__}",
                path="cache",
            )
        self._cache = cache
        self._ttl_seconds = ttl_seconds
        self._pause_seconds = pause_seconds
        self._paused_until = 0.0

    async def read(
        self, io: IO, key: Hashable, deadline: Deadline, degradations: list[Degradation]
    ) -> Transformation | None:
        """Return what is stored under *key*: ``None`` for nothing, empty if it is unreadable."""
        name = _hash_key(key)
        value = await self._call(io, partial(self._cache.get, name), deadline, degradations)
        return None if value is None else _decode_transformation(value, name)

    async def write(
        self,
        io: IO,
        key: Hashable,
        transformation: Transformation,
        deadline: Deadline,
        degradations: list[Degradation],
    ) -> None:
        """Store *transformation* under *key*."""
        # With its key, as a cache that mixes keys up would answer another question.
        name = _hash_key(key)
        value = json.dumps({"key": name, **asdict(transformation)})
        call = partial(self._cache.set, name, value, self._ttl_seconds)
        await self._call(io, call, deadline, degradations)

    async def _call(
        self,
        io: IO,
        call: partial[Any],
        deadline: Deadline,
        degradations: list[Degradation],
    ) -> Any:
        """Return the result of *call*; ``None`` if it fails, is late or is not made."""
        if monotonic() < self._paused_until:
            return None
        seconds = min(MAX_SECONDS, deadline.remaining() / 4)
        # The call's own limit only ends an awaitable that nobody waits for any more.
        work = partial(io.call, call, 2 * MAX_SECONDS)
        (outcome,) = await io.gather([work], deadline.sooner(seconds), 1)
        if outcome.has_succeeded:
            return outcome.value
        self._paused_until = monotonic() + self._pause_seconds
        degradations.append(Degradation("cache", outcome.reason, outcome.detail))
        return None


def _hash_key(cache_key: Hashable) -> str:
    """Return the key of *cache_key* in a shared cache, which hides the question in it."""
    import hashlib

    return "qtm:" + hashlib.sha256(repr(cache_key).encode("utf-8", "surrogatepass")).hexdigest()


def _decode_transformation(value: Any, name: str) -> Transformation:
    try:
        fields = json.loads(value)
        transformation: Transformation = _build_adapter().validate_python(fields)
        return transformation if fields["key"] == name else NOTHING
    except (LookupError, TypeError, ValueError, RecursionError):
        return NOTHING


@cache
def _build_adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Transformation)
