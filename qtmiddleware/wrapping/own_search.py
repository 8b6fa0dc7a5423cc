"""The search of the own store, opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Embedder, Record, Store
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.wrapping.wrapped import Wrapped

Search = Wrapped[..., list[Record]]


class StoreSearch(Protocol):
    """An open store with the search over it. The kit's `StoreRetriever` is one."""

    @property
    def search(self) -> Callable[..., list[Record]]:
        """The search: ``(query, top_k, filter)``. Its query is a vector if there is a `query_embedder`, else a text."""

    @property
    def query_embedder(self) -> Embedder | None:
        """What embeds the search's queries; ``None`` if the search takes texts."""

    def with_settings(self, settings: Settings) -> StoreSearch:
        """Return the search that *settings* ask for, over the same open store."""

    def close(self) -> None:
        """Close what was opened for this search."""


class OwnSearch:
    """The own store's search with a middleware around it, made once for all who ask. Thread-safe."""

    __slots__ = ("_embedder", "_lock", "_opened", "_search", "_settings", "_store")

    def __init__(self, settings: Settings, *, store: Store | None, embedder: Any) -> None:
        self._settings = settings
        self._store = store
        self._embedder = embedder
        self._lock = ForkLock()
        self._opened: StoreSearch | None = None
        self._search: Search | None = None

    def get(self, wrap: Callable[[StoreSearch], Search]) -> Search:
        """Returns the search; the first call opens the store, and *wrap* puts the middleware around it."""
        # Those who wrap their own functions need no store; they do not wait for its modules.
        from qtmiddleware.kit.index.retriever import open_retriever

        with self._lock.free:
            if self._search is None:
                if self._opened is None:
                    self._opened = open_retriever(
                        self._settings, store=self._store, embedder=self._embedder, must_exist=True
                    )
                self._search = wrap(self._opened)
            return self._search

    def with_settings(self, settings: Settings) -> OwnSearch:
        """Returns the search under other *settings*, over the same open store where they name the same.

        Another store is let go of: it is freed with the last search over it, which somebody may
        still hold.
        """
        if _search_key(settings) == _search_key(self._settings):
            return self
        other = OwnSearch(settings, store=self._store, embedder=self._embedder)
        with self._lock.free:
            opened = self._opened
        if opened is not None and _store_key(settings) == _store_key(self._settings):
            other._opened = opened.with_settings(settings)
        return other

    def close(self) -> None:
        """Close the store where it was opened here; the next search opens it again."""
        with self._lock.free:
            opened, self._opened, self._search = self._opened, None, None
        if opened is not None:
            opened.close()


def _store_key(settings: Settings) -> tuple[object, ...]:
    """Returns what a store is opened with."""
    return (
        settings.index_path,
        settings.embedding_model,
        settings.embedding_dimensions,
        settings.store,
    )


def _search_key(settings: Settings) -> tuple[object, ...]:
    """Returns what the search over a store is made with."""
    rules = settings.preprocess if settings.hybrid.enabled else None
    return *_store_key(settings), settings.hybrid, rules, settings.top_k
