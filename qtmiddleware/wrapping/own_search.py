"""The search of the own store, opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Record, Store
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.wrapping.wrapped import Wrapped

if TYPE_CHECKING:
    from qtmiddleware.rag.retriever import StoreRetriever

Search = Wrapped[..., list[Record]]


class OwnSearch:
    """The own store's search with a middleware around it, made once for all who ask. Thread-safe."""

    __slots__ = ("_embedder", "_lock", "_retriever", "_search", "_settings", "_store")

    def __init__(self, settings: Settings, *, store: Store | None, embedder: Any) -> None:
        self._settings = settings
        self._store = store
        self._embedder = embedder
        self._lock = ForkLock()
        self._retriever: StoreRetriever | None = None
        self._search: Search | None = None

    def get(self, wrap: Callable[[StoreRetriever], Search]) -> Search:
        """Returns the search; the first call opens the store, and *wrap* puts the middleware around it."""
        # Those who wrap their own functions need no store; they do not wait for its modules.
        from qtmiddleware.rag.retriever import open_retriever

        with self._lock.free:
            if self._search is None:
                if self._retriever is None:
                    self._retriever = open_retriever(
                        self._settings, store=self._store, embedder=self._embedder, must_exist=True
                    )
                self._search = wrap(self._retriever)
            return self._search

    def with_settings(self, settings: Settings) -> OwnSearch:
        """Returns the search under other *settings*, over the same open store where they name the same.

        Another store is let go of: it is freed with the last search over it, which somebody may still hold.
        """
        if _search_key(settings) == _search_key(self._settings):
            return self
        other = OwnSearch(settings, store=self._store, embedder=self._embedder)
        with self._lock.free:
            retriever = self._retriever
        if retriever is not None and _store_key(settings) == _store_key(self._settings):
            from qtmiddleware.rag.retriever import with_search

            other._retriever = with_search(retriever, settings)
        return other

    def close(self) -> None:
        """Close the store where it was opened here; the next search opens it again."""
        with self._lock.free:
            retriever, self._retriever, self._search = self._retriever, None, None
        if retriever is not None:
            retriever.close()


def _store_key(settings: Settings) -> tuple[object, ...]:
    """Returns what a store is opened with."""
    return settings.index_path, settings.embedding_model, settings.embedding_dimensions, settings.store


def _search_key(settings: Settings) -> tuple[object, ...]:
    """Returns what the search over a store is made with."""
    rules = settings.preprocess if settings.hybrid.enabled else None
    return *_store_key(settings), settings.hybrid, rules, settings.top_k
