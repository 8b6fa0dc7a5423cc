"""Cache transformed questions in this process and, if configured, in Redis."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from qtmiddleware.config.settings import Settings
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.single_flight import SingleFlight
from qtmiddleware.types import Transformation

if TYPE_CHECKING:
    from qtmiddleware.runtime.redis_cache import RedisCache

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
        self._lock = ForkLock()

    def get(self, key: Hashable, *, is_counted: bool = True) -> V | None:
        """Return the value stored under *key*; ``None`` if there is none or it has expired.

        If *is_counted* is false, *hits* and *misses* stay the same. Pass false for a question's
        second lookup, so that each question counts once.
        """
        with self._lock.lock:
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
        with self._lock.lock:
            self._entries[key] = (self._clock(), value)
            self._entries.move_to_end(key)
            self._drop_excess()

    def change_limits(self, max_entries: int, ttl_seconds: float) -> None:
        """Set new limits, also for values that are already stored."""
        with self._lock.lock:
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
        shared: The cache in Redis; ``None`` if Redis is not configured.

    Raises:
        ConfigError: The Redis address cannot be used.
        MissingExtra: The ``redis`` package is missing.
    """

    def __init__(self, settings: Settings) -> None:
        options = settings.cache
        self.local: TTLCache[Transformation] = TTLCache(options.max_entries, options.ttl_seconds)
        self.flights = SingleFlight()
        self._lock = ForkLock()
        self._redis_options = _collect_redis_options(settings)
        self.shared = _make_redis_cache(settings)

    def apply_settings(self, settings: Settings) -> None:
        """Apply new *settings*. Cached and running transformations are kept.

        If the Redis options changed, a new client replaces the old one. The old client closes as
        soon as no question uses it. If the new client cannot be made, nothing changes.

        Raises:
            ConfigError: The Redis address cannot be used.
            MissingExtra: The ``redis`` package is missing.
        """
        options = _collect_redis_options(settings)
        with self._lock.lock:
            former = self.shared
            if options != self._redis_options:
                self.shared, self._redis_options = _make_redis_cache(settings), options
            self.local.change_limits(settings.cache.max_entries, settings.cache.ttl_seconds)
        # Running questions still use the old client, so it is not closed at once.
        if former is not None and former is not self.shared:
            former.in_use.close_when_unused()

    def close(self) -> None:
        """Close the connections to Redis. The next question opens new ones."""
        if self.shared is not None:
            self.shared.close()


def hash_key(cache_key: Hashable) -> str:
    """Return the SHA-256 hash of *cache_key* as 64 hex digits.

    The hash hides the question, which is part of *cache_key*.
    """
    import hashlib

    return hashlib.sha256(repr(cache_key).encode("utf-8", "surrogatepass")).hexdigest()


def _collect_redis_options(settings: Settings) -> Hashable:
    """Return the settings that require a new Redis client if they change.

    The user name and password are included as a hash. Returns ``None`` if Redis is not configured.
    """
    options = settings.cache
    if not (options.enabled and options.redis_url):
        return None
    user = hash((os.environ.get("REDIS_USERNAME"), os.environ.get("REDIS_PASSWORD")))
    return (
        options.redis_url,
        options.redis_timeout_ms,
        options.ttl_seconds,
        settings.breaker.seconds,
        user,
    )


def _make_redis_cache(settings: Settings) -> RedisCache | None:
    """Return the Redis cache that *settings* configure; ``None`` if Redis is not configured."""
    options = settings.cache
    if not (options.enabled and options.redis_url):
        return None
    from qtmiddleware.runtime.redis_cache import RedisCache

    return RedisCache(
        options.redis_url,
        # Less than a question waits, so that the question learns of a failure before it asks Redis
        # again.
        timeout=0.8 * options.redis_timeout_ms / 1e3,
        ttl_seconds=options.ttl_seconds,
        # Redis must never cost more than one wait, so the first failure opens the breaker, however
        # many failures the model's breaker allows.
        breaker=Breaker(1, settings.breaker.seconds),
    )
