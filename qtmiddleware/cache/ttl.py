"""A bounded memory that forgets: least recently used first, and everything after its time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

from qtmiddleware.forking import ForkLock

V = TypeVar("V")


class TTLCache(Generic[V]):
    """At most *max_entries* values, each kept for *ttl_seconds*; safe with many threads."""

    def __init__(self, max_entries: int, ttl_seconds: float, *, clock: Callable[[], float] = monotonic) -> None:
        self._max_entries = max_entries
        self._ttl = ttl_seconds
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()
        self._lock = ForkLock()

    def get(self, key: Hashable) -> V | None:
        """The value kept under *key*, or ``None``."""
        with self._lock.free:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry[0] <= self._clock():
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: Hashable, value: V) -> None:
        """Keep *value* under *key*."""
        with self._lock.free:
            self._entries[key] = (self._clock() + self._ttl, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
