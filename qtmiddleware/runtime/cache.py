"""What is remembered between questions: transformations in this process, and in Redis where that is configured."""

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
    """At most *max_entries* values, least recently used first out, each for *ttl_seconds*. Thread-safe.

    *hits* and *misses* count how often `get` returned a value and ``None``.
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

    def get(self, key: Hashable, *, counts: bool = True) -> V | None:
        """The value under *key*, or ``None``; a second look for the same question *counts* no more."""
        with self._lock.free:
            entry = self._entries.get(key)
            if entry is not None and entry[0] + self._ttl <= self._clock():
                del self._entries[key]
                entry = None
            if counts:
                self.hits += entry is not None
                self.misses += entry is None
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: Hashable, value: V) -> None:
        """Store *value* under *key*."""
        with self._lock.free:
            self._entries[key] = (self._clock(), value)
            self._entries.move_to_end(key)
            self._shrink()

    def change(self, max_entries: int, ttl_seconds: float) -> None:
        """Set other limits, which hold for the values that are stored already, too."""
        with self._lock.free:
            self.max_entries, self._ttl = max_entries, ttl_seconds
            self._shrink()

    def _shrink(self) -> None:
        while len(self._entries) > self.max_entries:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


class TransformationCache:
    """The transformations of one middleware: *local* ones, those under way (*flights*) and the *shared* cache, if any.

    Raises `ConfigError` for an address of Redis that cannot be used and `MissingExtra` without the
    ``redis`` package.
    """

    def __init__(self, settings: Settings) -> None:
        options = settings.cache
        self.local: TTLCache[Transformation] = TTLCache(options.max_entries, options.ttl_seconds)
        self.flights = SingleFlight()
        self._lock = ForkLock()
        self._redis_options = _redis_options(settings)
        self.shared = _connect_redis(settings)

    def change(self, settings: Settings) -> None:
        """Go on under other *settings* with what is remembered and under way.

        Another Redis, or the same reached another way, takes the place of the one before; questions
        that are being answered end with that. Raises as the constructor does, and has changed
        nothing then.
        """
        options = _redis_options(settings)
        with self._lock.free:
            former = self.shared
            if options != self._redis_options:
                self.shared, self._redis_options = _connect_redis(settings), options
            self.local.change(settings.cache.max_entries, settings.cache.ttl_seconds)
        if former is not None and former is not self.shared:
            former.in_use.retire()

    def close(self) -> None:
        """Close the connections to the shared cache; the next question opens others."""
        if self.shared is not None:
            self.shared.close()


def digest(key: Hashable) -> str:
    """*key* as 64 hex digits, in which no text of it can be read (SHA-256)."""
    import hashlib

    return hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()


def _redis_options(settings: Settings) -> Hashable:
    """Everything a client of Redis is made with, ``None`` without one; the password as a hash."""
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


def _connect_redis(settings: Settings) -> RedisCache | None:
    options = settings.cache
    if not (options.enabled and options.redis_url):
        return None
    from qtmiddleware.runtime.redis_cache import RedisCache

    return RedisCache(
        options.redis_url,
        # A little less than a question waits, which then hears of a failure before it asks Redis
        # again.
        timeout=0.8 * options.redis_timeout_ms / 1e3,
        ttl_seconds=options.ttl_seconds,
        # It must never cost more than one wait: the first failure is enough, whatever the model is
        # granted.
        breaker=Breaker(1, settings.breaker.seconds),
    )
