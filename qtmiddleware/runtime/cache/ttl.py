"""A bounded memory that forgets: least recently used first, and everything after its time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

from qtmiddleware.runtime.forking import ForkLock

V = TypeVar("V")


class TTLCache(Generic[V]):
    """At most *max_entries* values, each kept for *ttl_seconds*; safe with many threads.

    *hits* and *misses* count how often something was found and not found.
    """

    def __init__(self, max_entries: int, ttl_seconds: float, *, clock: Callable[[], float] = monotonic) -> None:
        self.max_entries = max_entries
        self.hits = self.misses = 0
        self._ttl = ttl_seconds
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()
        self._lock = ForkLock()

    def get(self, key: Hashable, *, counts: bool = True) -> V | None:
        """The value kept under *key*, or ``None``; a second look for the same question *counts* no more."""
        with self._lock.free:
            entry = self._entries.get(key)
            if entry is not None and entry[0] <= self._clock():
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
        """Keep *value* under *key*."""
        with self._lock.free:
            self._entries[key] = (self._clock() + self._ttl, value)
            self._entries.move_to_end(key)
            self._shrink()

    def change(self, max_entries: int, ttl_seconds: float) -> None:
        """Go on with other limits, which hold for what is kept already, too."""
        with self._lock.free:
            if ttl_seconds < self._ttl:
                latest = self._clock() + ttl_seconds
                for key, (until, value) in self._entries.items():
                    self._entries[key] = min(until, latest), value
            self.max_entries, self._ttl = max_entries, ttl_seconds
            self._shrink()

    def _shrink(self) -> None:
        while len(self._entries) > self.max_entries:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
