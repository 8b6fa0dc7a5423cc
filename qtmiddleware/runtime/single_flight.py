"""Work that several callers want at the same time and one of them does for all (single flight)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from time import monotonic
from typing import Any, Final

from qtmiddleware.runtime.forking import renew_after_fork

ABANDONED: Final = object()
"""What a flight lands with whose leader gave up for reasons of its own: whoever waited may lead the next."""

STANDSTILL: Final = object()
"""What one hears who cannot wait for a flight without stopping it: its leader needs the same thread."""

_led: ContextVar[tuple[Flight, ...]] = ContextVar("led", default=())


class Flight:
    """One piece of work under way: its leader lets it land, everybody else hears of it."""

    __slots__ = ("_listeners", "_lock", "thread", "until", "value")

    def __init__(self, until: float) -> None:
        self.thread = threading.get_ident()
        self._lock = threading.Lock()
        self._listeners: list[Callable[[Any], None]] = []
        self.until = until
        self.value: Any = None

    def heard(self, listener: Callable[[Any], None]) -> None:
        """Call *listener* with what this lands with, from the leader's thread; at once where it has landed."""
        with self._lock:
            if self.value is None:
                self._listeners.append(listener)
                return
        listener(self.value)

    def unheard(self, listener: Callable[[Any], None]) -> None:
        """Call *listener* no more."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def land(self, value: Any) -> None:
        """Tell everybody *value*, which is not ``None``; only the first landing counts."""
        with self._lock:
            if self.value is not None:
                return
            self.value = value
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(value)


class Flights:
    """What is under way, by key; safe with many threads and loops. A forked process begins with nothing under way."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what is under way: only the parent goes on with it."""
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, Flight] = {}

    def board(self, key: Hashable, until: float) -> tuple[Flight | None, bool]:
        """The flight of *key* and whether the caller leads it, who must let it land by *until* (monotonic clock).

        One that has landed is there until its leader lets it go (`landed`). One whose leader is late counts no more: a
        loop that was stopped never ends what ran in it. There is no flight for one who is at work for its leader (a
        wrapped function that calls another): they would wait for each other.
        """
        with self._lock:
            flight = self._by_key.get(key)
            if flight is not None and monotonic() < flight.until:
                return (None if flight in _led.get() else flight), False
            flight = self._by_key[key] = Flight(until)
        _led.set((*_led.get(), flight))
        return flight, True

    def landed(self, key: Hashable, flight: Flight, value: Any) -> None:
        """Let *flight* land with *value*, if it has not yet; the next one who asks for *key* leads a new one."""
        with self._lock:
            if self._by_key.get(key) is flight:
                del self._by_key[key]
        _led.set(tuple(other for other in _led.get() if other is not flight))
        flight.land(value)

    def __len__(self) -> int:
        return len(self._by_key)
