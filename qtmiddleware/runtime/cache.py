"""Cache transformed questions in this process and, if the user passes one, in a shared cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from qtmiddleware.config.settings import Settings
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.single_flight import SingleFlight
from qtmiddleware.types import Transformation

if TYPE_CHECKING:
    from qtmiddleware.runtime.shared_cache import SharedCache

V = TypeVar("V")


class TTLCache(Generic[V]):
    """A cache that keeps up to *max_entries* values for *ttl_seconds* each.

    If the cache is full, the least recently used value is dropped. Thread-safe.

    Attributes:
        max_entries: The maximum number of values.
        hits: How often `get` returned a value.
        misses: How often `get` returned ``None``.
    """

    def __init__(
        self, max_entries: int, ttl_seconds: float, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self.max_entries = max_entries
        self.hits = self.misses = 0
        self._ttl = ttl_seconds
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()
        self._lock = make_lock()

    def get(self, key: Hashable, *, is_counted: bool = True) -> V | None:
        """Return the value stored under *key*; ``None`` if there is none or it has expired.

        If *is_counted* is false, *hits* and *misses* stay the same. Pass false for a question's
        second lookup, so that each question counts once.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[0] + self._ttl <= self._clock():
                del self._entries[key]
                entry = None
            if is_counted:
                self.hits += entry is not None
                self.misses += entry is None
            if entry is None:
                return None
            # The first entry is always the least recently used one.
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: Hashable, value: V) -> None:
        """Store *value* under *key*. A full cache drops its least recently used value."""
        with self._lock:
            self._entries[key] = (self._clock(), value)
            self._entries.move_to_end(key)
            self._drop_excess()

    def change_limits(self, max_entries: int, ttl_seconds: float) -> None:
        """Set new limits, also for values that are already stored."""
        with self._lock:
            self.max_entries, self._ttl = max_entries, ttl_seconds
            self._drop_excess()

    def _drop_excess(self) -> None:
        while len(self._entries) > self.max_entries:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


class TransformationCache:
    """The transformations that one middleware has cached or is making now.

    Attributes:
        local: The cache in this process.
        flights: The transformations that are being made. Callers with the same question share one.
        shared: The cache that several processes share; ``None`` if the user passed none.
    """

    def __init__(self, settings: Settings, shared: SharedCache | None = None) -> None:
        options = settings.cache
        self.local: TTLCache[Transformation] = TTLCache(options.max_entries, options.ttl_seconds)
        self.flights = SingleFlight()
        self.shared = shared

    def apply_settings(self, settings: Settings) -> None:
        """Apply new *settings*. Cached and running transformations are kept."""
        self.local.change_limits(settings.cache.max_entries, settings.cache.ttl_seconds)
        if self.shared is not None:
            self.shared.change_pause(settings.breaker.seconds)


def hash_key(cache_key: Hashable) -> str:
    """Return the key of *cache_key* in a shared cache: ``qtm:`` and a SHA-256 hash.

    The hash hides the question, which is part of *cache_key*.
    """
    import hashlib

    return "qtm:" + hashlib.sha256(repr(cache_key).encode("utf-8", "surrogatepass")).hexdigest()
