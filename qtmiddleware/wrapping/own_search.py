"""Open the configured store when it is first needed, and wrap its search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Embedder, Record, Store
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.wrapping.wrapped import Wrapped

Search = Wrapped[..., list[Record]]


class StoreSearch(Protocol):
    """An open store with a search function, such as the kit's `StoreRetriever`."""

    @property
    def search(self) -> Callable[..., list[Record]]:
        """The search function, which takes ``(query, top_k, filter)``.

        *query* is a vector if there is a `query_embedder`, else a text.
        """

    @property
    def query_embedder(self) -> Embedder | None:
        """The embedder for the search's queries, or ``None`` if the search takes texts."""

    def copy_with_settings(self, settings: Settings) -> StoreSearch:
        """Return a `StoreSearch` that uses this open store with other *settings*."""

    def close(self) -> None:
        """Close everything that was opened for this search."""


class OwnSearch:
    """Opens the configured store once, and wraps the store's search for all callers.

    The class is thread-safe.
    """

    __slots__ = ("_embedder", "_lock", "_opened", "_search", "_settings", "_store")

    def __init__(self, settings: Settings, *, store: Store | None, embedder: Any) -> None:
        self._settings = settings
        self._store = store
        self._embedder = embedder
        self._lock = make_lock()
        self._opened: StoreSearch | None = None
        self._search: Search | None = None

    def get_search(self, wrap_search: Callable[[StoreSearch], Search]) -> Search:
        """Return the store's search, wrapped with the middleware.

        The first call opens the store, and wraps its search with *wrap_search*.
        """
        # Imported here so that users who only wrap their own functions do not pay for the store's
        # modules.
        from qtmiddleware.kit.index.retriever import open_retriever

        # Two threads may ask at the same time. The second one waits for the store that the first
        # one opens.
        with self._lock:
            if self._search is None:
                if self._opened is None:
                    self._opened = open_retriever(
                        self._settings, store=self._store, embedder=self._embedder, must_exist=True
                    )
                self._search = wrap_search(self._opened)
            return self._search

    def copy_with_settings(self, settings: Settings) -> OwnSearch:
        """Return an `OwnSearch` for other *settings*, or this object if the search stays the same.

        If *settings* name the store of this object, the new object uses the store that is already
        open. Otherwise, the new object opens the other store on first use. The old store stays open
        for callers that still use it.
        """
        if _build_search_key(settings) == _build_search_key(self._settings):
            return self
        search = OwnSearch(settings, store=self._store, embedder=self._embedder)
        with self._lock:
            opened = self._opened
        if opened is not None and _build_store_key(settings) == _build_store_key(self._settings):
            search._opened = opened.copy_with_settings(settings)
        return search

    def close(self) -> None:
        """Close the store if it is open. The next call of `get_search` opens it again."""
        # Only the exchange needs the lock. Closing may take long, and other threads can already
        # open the store again.
        with self._lock:
            opened, self._opened, self._search = self._opened, None, None
        if opened is not None:
            opened.close()


def _build_store_key(settings: Settings) -> tuple[object, ...]:
    """Return the settings that determine which store is opened, and how."""
    return (
        settings.index_path,
        settings.embedding_model,
        settings.embedding_dimensions,
        settings.store,
    )


def _build_search_key(settings: Settings) -> tuple[object, ...]:
    """Return the settings that determine the store and how the store is searched."""
    # The rules prepare the keyword search's texts, so they matter only with a keyword search.
    rules = settings.preprocess if settings.hybrid.enabled else None
    return (
        *_build_store_key(settings),
        settings.hybrid,
        settings.fusion.rrf_k,
        rules,
        settings.top_k,
    )
