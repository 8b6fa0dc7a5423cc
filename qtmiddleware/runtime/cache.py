"""Cache transformed questions in this process and, if the user passes one, in a shared cache."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache, partial
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import Cache
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.io import IO
from qtmiddleware.runtime.single_flight import SingleFlight
from qtmiddleware.types import Deadline, Degradation, Transformation

V = TypeVar("V")

MAX_SECONDS: Final = 0.25
"""How long a question waits for a read, and for a write, in seconds."""

MAX_CHARS: Final = 1 << 20
"""The length of the longest value that is written to a shared cache or read, in characters."""


class TTLCache(Generic[V]):
    """A thread-safe cache of the *max_entries* most recently used values, for *ttl_seconds* each.

    Both limits may be changed. *hits* and *misses* count how often `get` returned a value and
    ``None``.
    """

    def __init__(
        self,
        max_entries: int,
        ttl_seconds: float,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.max_entries, self.ttl_seconds = max_entries, ttl_seconds
        self.hits = self.misses = 0
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()
        self._lock = make_lock()

    def get(self, key: Hashable, *, is_counted: bool = True) -> V | None:
        """Return the value stored under *key*; ``None`` if there is none or it has expired."""
        with self._lock:
            since, value = self._entries.pop(key, (float("-inf"), None))
            is_hit = since + self.ttl_seconds > self._clock()
            if is_counted:
                self.hits += is_hit
                self.misses += not is_hit
            if not is_hit or value is None:
                return None
            # The first entry is always the least recently used one.
            self._entries[key] = since, value
            return value

    def put(self, key: Hashable, value: V) -> None:
        """Store *value* under *key*."""
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = self._clock(), value
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


class TransformationCache:
    """The transformations that one middleware has cached or is making now."""

    def __init__(self, settings: Settings, shared: SharedCache | None = None) -> None:
        options = settings.cache
        self.local = TTLCache[Transformation](options.max_entries, options.ttl_seconds)
        self.flights = SingleFlight()
        self.shared = shared

    def apply_settings(self, settings: Settings) -> None:
        """Apply new *settings*. Cached and running transformations are kept."""
        self.local.max_entries = settings.cache.max_entries
        self.local.ttl_seconds = settings.cache.ttl_seconds
        if self.shared is not None:
            self.shared.pause_seconds = settings.breaker.seconds


def hash_key(cache_key: Hashable) -> str:
    """Return the key of *cache_key* in a shared cache, which hides the question in it."""
    import hashlib

    return "qtm:" + hashlib.sha256(repr(cache_key).encode("utf-8", "surrogatepass")).hexdigest()


class SharedCache:
    """A cache that several processes share.

    A question waits at most `MAX_SECONDS`, and a quarter of the time that is left for the model.
    After a failure or a late call, no question uses the cache for *pause_seconds*. Problems are
    added to *degradations*.
    """

    def __init__(self, cache: Cache, pause_seconds: float) -> None:
        if not (callable(getattr(cache, "get", None)) and callable(getattr(cache, "set", None))):
            raise ConfigError(
                "cache= must be an object with get(key) and set(key, value, seconds), not"
                f" {type(cache).__name__}",
                path="cache",
            )
        self._cache = cache
        self.pause_seconds = pause_seconds
        self._paused_until = 0.0

    async def read(
        self, io: IO, key: str, deadline: Deadline, degradations: list[Degradation]
    ) -> Transformation | None:
        """Return the transformation stored under *key*; ``None`` if there is none."""
        value = await self._call(io, partial(self._cache.get, key), deadline, degradations)
        if value is None:
            return None
        transformation = decode_transformation(value, key)
        if transformation is None:
            degradations.append(Degradation("cache", "unreadable"))
        return transformation

    async def write(
        self,
        io: IO,
        key: str,
        transformation: Transformation,
        ttl_seconds: int,
        deadline: Deadline,
        degradations: list[Degradation],
    ) -> None:
        """Store *transformation* under *key* for *ttl_seconds*, unless it is too long."""
        value = encode_transformation(transformation, key)
        if len(value) <= MAX_CHARS:
            call = partial(self._cache.set, key, value, ttl_seconds)
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
        self._paused_until = monotonic() + self.pause_seconds
        degradations.append(Degradation("cache", outcome.reason, outcome.detail))
        return None


def encode_transformation(transformation: Transformation, key: str) -> str:
    """Return *transformation* as JSON, with *key*. Empty fields are omitted."""
    fields = _build_adapter().dump_python(transformation, exclude_defaults=True)
    return json.dumps({"key": key, **fields}, separators=(",", ":"))


def decode_transformation(value: Any, key: str) -> Transformation | None:
    """Return the transformation that `encode_transformation` encoded as *value* with *key*."""
    if not isinstance(value, str | bytes) or len(value) > MAX_CHARS:
        return None
    try:
        fields = json.loads(value)
        # A cache that returns the value of another key would answer another question.
        if not isinstance(fields, dict) or fields.pop("key", None) != key:
            return None
        transformation: Transformation = _build_adapter().validate_python(fields)
    except (ValueError, RecursionError):
        return None
    is_known = fields.keys() <= {*TEXT_FIELDS, "notes"}
    return transformation if is_known and not transformation.is_empty else None


@cache
def _build_adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Transformation)
