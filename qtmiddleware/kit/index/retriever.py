"""Open the configured store and embedder, and build a function that searches the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, StoreError, WrapError
from qtmiddleware.kit.embedding import OpenAIEmbedder, find_embedder
from qtmiddleware.kit.index.hybrid import HybridSearch
from qtmiddleware.kit.stores import MemoryStore, SQLiteStore, open_pinecone
from qtmiddleware.protocols import Embedder, Filter, Record, Store, is_embedder
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.logs import get_logger

logger: Final = get_logger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class StoreRetriever:
    """An open store, its embedder, and a function that searches the store.

    Attributes:
        store: the store to search, already open.
        embedder: the embedder for passages.
        search: the function that searches the store; it takes ``(query, top_k, filter)``.
        settings: the settings that the store was opened with.
        query_embedder: the embedder for queries; ``None`` if *search* takes texts, not vectors.
        owns_store: whether `close` closes *store*, because this object opened it.
        owns_embedder: whether `close` closes *embedder*, because this object opened it.
    """

    store: Store
    embedder: Embedder
    search: Callable[..., list[Record]] = field(repr=False)
    settings: Settings = field(repr=False)
    query_embedder: Embedder | None
    owns_store: bool
    owns_embedder: bool = False

    def serves(self, settings: Settings) -> bool:
        """Return whether *settings* ask for the same store and the same search of it."""
        return _list_search_settings(settings) == _list_search_settings(self.settings)

    def close(self) -> None:
        """Close the store and the embedder, unless the caller passed them in."""
        if self.owns_store:
            self.store.close()
        if self.owns_embedder and isinstance(self.embedder, OpenAIEmbedder):
            self.embedder.close()


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
    used_embedder = _open_embedder(embedder, settings)
    used_store = (
        store if store is not None else _open_store(settings, used_embedder, must_exist=must_exist)
    )
    search, query_embedder = _build_search_and_embedder(used_store, used_embedder, settings)
    return StoreRetriever(
        used_store,
        used_embedder,
        search,
        settings,
        query_embedder,
        owns_store=store is None,
        owns_embedder=embedder is None,
    )


def _list_search_settings(settings: Settings) -> tuple[object, ...]:
    """Return the settings that determine the store and how it is searched."""
    return (
        settings.index_path,
        settings.embedding_model,
        settings.embedding_dimensions,
        settings.store,
        settings.hybrid,
        settings.fusion.rrf_k,
        # The rules prepare the keyword search's texts, so they matter only with a keyword search.
        settings.preprocess if settings.hybrid.enabled else None,
        settings.top_k,
    )


def _open_embedder(embedder: Any, settings: Settings) -> Embedder:
    """Return *embedder*, or the configured embedder if *embedder* is ``None``.

    If *embedder* is a function, returns an embedder that calls the function. Raises `ConfigError`
    if *embedder* cannot embed.
    """
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


def _open_store(settings: Settings, embedder: Embedder, *, must_exist: bool) -> Store:
    """Open the configured store for vectors of *embedder*.

    If *must_exist* is true and the store keeps files, raises `StoreError` if the index does not
    exist, and logs a warning if the index is empty.
    """
    kind, path = settings.store.kind, settings.index_path
    # Checked before the store is opened, which would create an empty index.
    if kind == "sqlite" and must_exist and not Path(path).expanduser().exists():
        raise StoreError(
            f"the index {path} does not exist yet; create it with qtm ingest and the same config"
        )
    vectors: dict[str, Any] = {
        "embedding_model": embedder.name,
        "dimension": embedder.dimension,
    }
    if kind == "pinecone":
        return open_pinecone(settings.store, **vectors)
    if kind == "memory":
        return MemoryStore(**vectors)
    opened = SQLiteStore(path, **vectors)
    # Only a search of an empty index is worth a warning: an ingest is about to fill the index.
    if must_exist and not opened.count():
        logger.warning(
            "the index at %s is empty; add documents with qtm ingest", path, event="index_empty"
        )
    return opened


def _build_search_and_embedder(
    store: Store, embedder: Embedder, settings: Settings
) -> tuple[Callable[..., list[Record]], Embedder | None]:
    """Return a function that searches *store*, and the embedder for the search queries.

    The embedder is ``None`` if the function takes texts, not vectors.
    """
    # A user's embedding function may embed queries in another way than passages.
    if isinstance(embedder, CallableEmbedder):
        embedder = embedder.queries
    if settings.hybrid.enabled:
        # The word search needs the question's text, so the search embeds the question itself.
        return HybridSearch(
            store,
            embedder,
            options=settings.hybrid,
            rrf_k=settings.fusion.rrf_k,
            preprocess=settings.preprocess,
        ), None

    def search(
        query: Any,
        top_k: int = settings.top_k,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        return store.search(query, top_k, filter=filter)

    return search, embedder
