"""What language models made of questions, kept for equal ones: here, and in Redis where that is asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable
from typing import TYPE_CHECKING

from qtmiddleware.config.settings import Settings
from qtmiddleware.runtime.cache.ttl import TTLCache
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.single_flight import Flights
from qtmiddleware.types import Transformation

if TYPE_CHECKING:
    from qtmiddleware.runtime.cache.redis_cache import RedisCache


class TransformationCache:
    """The transformations of one middleware: *local* ones, those under way (*flights*) and the *shared* cache, if any.

    Raises `ConfigError` for an address that is none and `MissingExtra` where the client of Redis is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        options = settings.cache
        self.local: TTLCache[Transformation] = TTLCache(options.max_entries, options.ttl_seconds)
        self.flights = Flights()
        self._lock = ForkLock()
        self._set_as = _redis_account(settings)
        self.shared = _redis(settings)

    def change(self, settings: Settings) -> None:
        """Go on under other *settings* with what is remembered and under way.

        Another Redis, or the same reached another way, takes the place of the one before; questions that are being
        answered end with that. Raises as the making does, and has changed nothing then.
        """
        account = _redis_account(settings)
        with self._lock.free:
            former = self.shared
            if account != self._set_as:
                self.shared, self._set_as = _redis(settings), account
            self.local.change(settings.cache.max_entries, settings.cache.ttl_seconds)
        if former is not None and former is not self.shared:
            former.in_use.retire()

    def close(self) -> None:
        """Let go of the connections to the shared cache; the next question opens others."""
        if self.shared is not None:
            self.shared.close()


def digest(key: Hashable) -> str:
    """*key* as 64 hex digits, in which no text of it can be read (SHA-256)."""
    return hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()


def _redis_account(settings: Settings) -> Hashable:
    """Everything that a client of Redis is made with; no password stands in it."""
    options = settings.cache
    if not (options.enabled and options.redis_url):
        return None
    user = hash((os.environ.get("REDIS_USERNAME"), os.environ.get("REDIS_PASSWORD")))
    return options.redis_url, options.redis_timeout_ms, options.ttl_seconds, settings.breaker.seconds, user


def _redis(settings: Settings) -> RedisCache | None:
    options = settings.cache
    if not (options.enabled and options.redis_url):
        return None
    from qtmiddleware.runtime.cache.redis_cache import RedisCache

    return RedisCache(
        options.redis_url,
        # A little less than a question waits, which then hears of a failure before it asks Redis again.
        timeout=0.8 * options.redis_timeout_ms / 1e3,
        ttl_seconds=options.ttl_seconds,
        # It must never cost more than one wait: the first failure is enough, whatever the model is granted.
        breaker=Breaker(1, settings.breaker.seconds),
    )
