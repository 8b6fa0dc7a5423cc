"""The search of the own store, opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qtmiddleware.forking import ForkLock
from qtmiddleware.ports import Record, Store
from qtmiddleware.settings import Settings
from qtmiddleware.wrapped import Wrapped

if TYPE_CHECKING:
    from qtmiddleware.kit import Kit

Search = Wrapped[..., list[Record]]


class OwnSearch:
    """The own store's search with a middleware around it, made once for all who ask."""

    __slots__ = ("_embedder", "_kit", "_lock", "_settings", "_store", "_wrapped")

    def __init__(self, settings: Settings, *, store: Store | None, embedder: Any) -> None:
        self._settings = settings
        self._store = store
        self._embedder = embedder
        self._lock = ForkLock()
        self._kit: Kit | None = None
        self._wrapped: Search | None = None

    def wrapped(self, wrap: Callable[[Kit], Search]) -> Search:
        """The search; the first call opens the store and lets *wrap* put the middleware around it."""
        # Those who wrap their own functions need no store; they do not wait for its modules.
        from qtmiddleware.kit import open_kit

        with self._lock.free:
            if self._wrapped is None:
                self._kit = open_kit(self._settings, store=self._store, embedder=self._embedder, must_exist=True)
                self._wrapped = wrap(self._kit)
            return self._wrapped

    def close(self) -> None:
        """Close the store where it was opened here; the next search opens it again."""
        with self._lock.free:
            kit, self._kit, self._wrapped = self._kit, None, None
        if kit is not None:
            kit.close()
