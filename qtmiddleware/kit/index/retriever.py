"""Open the configured store and embedder, and build a function that searches the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, StoreError, WrapError
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.index.hybrid import search_store
from qtmiddleware.kit.stores import MemoryStore, SQLiteStore, open_pinecone
from qtmiddleware.protocols import Embedder, Filter, Record, Store, is_embedder
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.runtime.concurrency import is_async

# The settings that decide which store is opened, and how it is searched.
_GROUPS: Final = (
    *("index_path", "embedding_model", "embedding_dimensions", "store"),
    *("hybrid", "fusion", "preprocess", "top_k"),
)


@dataclass(frozen=True, slots=True)
class StoreRetriever:
    """An open store, its embedder, and a function that searches the store.

    Attributes:
        store: the store to search, already open.
        embedder: the embedder for passages.
        search: the function that searches the store; it takes ``(query, top_k, filter)``.
        settings: the settings that the store was opened with.
        query_embedder: the embedder for queries; ``None`` if *search* takes texts, not vectors.
        owned: what `close` closes, because this object opened it.
    """

    store: Store
    embedder: Embedder
    search: Callable[..., list[Record]] = field(repr=False)
    settings: Settings = field(repr=False)
    query_embedder: Embedder | None
    owned: tuple[Any, ...] = ()

    def serves(self, settings: Settings) -> bool:
        """Return whether *settings* ask for the same store and the same search of it."""
        return all(getattr(settings, name) == getattr(self.settings, name) for name in _GROUPS)

    def close(self) -> None:
        """Close the store and the embedder, unless the caller passed them in."""
        for opened in self.owned:
            opened.close()


def open_retriever(
    settings: Settings,
    *,
    store: Store | None = None,
    embedder: Any = None,
    must_exist: bool = False,
) -> StoreRetriever:
    """Open the configured store and embedder, and return a retriever that uses them.

    Args:
        settings: the settings of the store, the embedding model and the search.
        store: an open store to use instead of the configured store.
        embedder: an embedder or an embedding function to use instead of the configured model.
        must_exist: whether to raise `StoreError` if the index does not exist. If false, a missing
            index is created. Has no effect on stores without files.

    Raises:
        StoreError: if the store cannot be opened, or contains vectors of another model.
        ConfigError: if settings contradict each other, or *embedder* cannot embed.
        MissingExtra: if a package is not installed.
    """
    owned: list[Any] = []
    used_embedder = _open_embedder(embedder, settings)
    if store is None:
        store = _open_store(settings, used_embedder, must_exist)
        owned.append(store)
    if embedder is None and hasattr(used_embedder, "close"):
        owned.append(used_embedder)
    # A user's embedding function may embed queries in another way than passages.
    query_embedder = used_embedder
    if isinstance(used_embedder, CallableEmbedder):
        query_embedder = used_embedder.queries

    def search(
        query: Any,
        top_k: int = settings.top_k,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        return store.search(query, top_k, filter=filter)

    if not settings.hybrid.enabled:
        parts = store, used_embedder, search, settings, query_embedder
        return StoreRetriever(*parts, tuple(owned))
    # The word search needs the question's text, so the search embeds the question itself.
    hybrid = search_store(
        store,
        query_embedder,
        options=settings.hybrid,
        rrf_k=settings.fusion.rrf_k,
        preprocess=settings.preprocess,
    )
    return StoreRetriever(store, used_embedder, hybrid, settings, None, tuple(owned))


def _open_embedder(embedder: Any, settings: Settings) -> Embedder:
    if embedder is None:
        return find_embedder(settings.embedding_model, dimensions=settings.embedding_dimensions)
    if is_embedder(embedder) and not is_async(embedder.embed):
        return embedder
    try:
        return CallableEmbedder(embedder, takes_list=True)
    except WrapError as error:
        raise ConfigError(
            f"embedder: {error}", path="embedder", allowed="a function or object that embeds"
        ) from None


def _open_store(settings: Settings, embedder: Embedder, must_exist: bool) -> Store:
    kind, path = settings.store.kind, settings.index_path
    # Checked before the store is opened, which would create an empty index.
    if kind == "sqlite" and must_exist and not Path(path).expanduser().exists():
        raise StoreError(
            f"the index {path} does not exist yet; create it with qtm ingest and the same config"
        )
    model, dimension = embedder.name, embedder.dimension
    if kind == "pinecone":
        return open_pinecone(settings.store, embedding_model=model, dimension=dimension)
    if kind == "memory":
        return MemoryStore(embedding_model=model, dimension=dimension)
    return SQLiteStore(path, embedding_model=model, dimension=dimension)
