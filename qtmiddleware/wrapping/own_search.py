"""The search of the own store, opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import finalize

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Record, Store
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.wrapping.wrapped import Wrapped

if TYPE_CHECKING:
    from qtmiddleware.rag.retriever import Kit

Search = Wrapped[..., list[Record]]


class _Held:
    """Lives as long as any search over one opened store does."""

    __slots__ = ("__weakref__",)


class OwnSearch:
    """The own store's search with a middleware around it, made once for all who ask."""

    __slots__ = ("_embedder", "_held", "_kit", "_lock", "_settings", "_store", "_wrapped")

    def __init__(self, settings: Settings, *, store: Store | None, embedder: Any) -> None:
        self._settings = settings
        self._store = store
        self._embedder = embedder
        self._lock = ForkLock()
        self._kit: Kit | None = None
        self._held: _Held | None = None
        self._wrapped: Search | None = None

    def wrapped(self, wrap: Callable[[Kit], Search]) -> Search:
        """The search; the first call opens the store and lets *wrap* put the middleware around it."""
        # Those who wrap their own functions need no store; they do not wait for its modules.
        from qtmiddleware.rag.retriever import open_kit

        with self._lock.free:
            if self._wrapped is None:
                if self._kit is None:
                    self._kit = open_kit(self._settings, store=self._store, embedder=self._embedder, must_exist=True)
                    self._held = _Held()
                # What it is registered with lives until the search is gone.
                finalize(self._kit.search, _let_go, self._held).atexit = False
                self._wrapped = wrap(self._kit)
            return self._wrapped

    def under(self, settings: Settings) -> OwnSearch:
        """The search under other *settings*, over the same open store where they name the same."""
        if _searched_with(settings) == _searched_with(self._settings):
            return self
        made = OwnSearch(settings, store=self._store, embedder=self._embedder)
        with self._lock.free:
            kit, held = self._kit, self._held
        if kit is not None and _opened_with(settings) == _opened_with(self._settings):
            from qtmiddleware.rag.retriever import with_search

            made._kit, made._held = with_search(kit, settings), held
        return made

    def retire(self, successor: OwnSearch) -> None:
        """Close the store where it was opened here and *successor* has another, once nobody holds a search over it."""
        if successor is self:
            return
        with self._lock.free:
            kit, held = self._kit, self._held
            self._kit = self._held = self._wrapped = None
        if kit is not None and held is not None and held is not successor._held:
            finalize(held, replace(kit, search=_let_go).close).atexit = False

    def close(self) -> None:
        """Close the store where it was opened here; the next search opens it again."""
        with self._lock.free:
            kit = self._kit
            self._kit = self._held = self._wrapped = None
        if kit is not None:
            kit.close()


def _opened_with(settings: Settings) -> tuple[object, ...]:
    """What a store is opened with."""
    return settings.index_path, settings.embedding_model, settings.embedding_dimensions, settings.store


def _searched_with(settings: Settings) -> tuple[object, ...]:
    """What the search over a store is made with."""
    rules = settings.preprocess if settings.hybrid.enabled else None
    return *_opened_with(settings), settings.hybrid, rules, settings.top_k


def _let_go(*_: Any) -> list[Record]:
    """Nothing."""
    return []
