"""A retrieval function for those who have none: a store, an embedder and the search over them, as the config says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from qtmiddleware.catalogue import STORES
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, StoreError, WrapError
from qtmiddleware.kit.embedding import embedder_named
from qtmiddleware.kit.index.hybrid import HybridSearch
from qtmiddleware.protocols import Embedder, Filter, Record, Store, is_embedder
from qtmiddleware.providers.embedders import CallableEmbedder, OpenAIEmbedder
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.logs import get_logger

logger: Final = get_logger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class StoreRetriever:
    """An open *store* with what embeds for it (``None`` where it does so itself) and the *search* over both.

    *search* takes ``(query, top_k, filter)``. Its query is a vector where there is a
    *query_embedder*, else a text.
    """

    store: Store
    embedder: Embedder | None
    search: Callable[..., list[Record]] = field(repr=False)
    query_embedder: Embedder | None
    owns_store: bool
    owns_embedder: bool = False

    def with_settings(self, settings: Settings) -> StoreRetriever:
        """Return the search that *settings* ask for, over the same open store; raises as `open_retriever` does."""
        search, query_embedder = _build_search(self.store, self.embedder, settings)
        return replace(self, search=search, query_embedder=query_embedder)

    def close(self) -> None:
        """Close the store and the embedder's connections, of those that were not given."""
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
    """The retriever *settings* ask for; *store* and *embedder*, whatever embeds, stand in for those they name.

    With *must_exist* a store that keeps files is not made where there is none. Raises `StoreError`
    where the store cannot be opened or holds vectors of another model, `ConfigError` for impossible
    settings, `MissingExtra`.
    """
    embeds_itself = (
        store.embeds
        if store is not None
        else settings.store.kind == "pinecone" and settings.store.integrated
    )
    chosen = None if embeds_itself else _open_embedder(embedder, settings)
    opened = store if store is not None else _open_store(settings, chosen, must_exist=must_exist)
    search, query_embedder = _build_search(opened, chosen, settings)
    return StoreRetriever(
        opened,
        chosen,
        search,
        query_embedder,
        owns_store=store is None,
        owns_embedder=embedder is None,
    )


def _open_embedder(given: Any, settings: Settings) -> Embedder:
    if given is None:
        return embedder_named(settings.embedding_model, dimensions=settings.embedding_dimensions)
    if is_embedder(given) and not is_async(given.embed):
        return given
    try:
        return CallableEmbedder(given)
    except WrapError as error:
        raise ConfigError(
            f"embedder: {error}", path="embedder", allowed="a function or object that embeds"
        ) from None


def _open_store(settings: Settings, embedder: Embedder | None, *, must_exist: bool) -> Store:
    name, dimension = ("", 0) if embedder is None else (embedder.name, embedder.dimension)
    row, path = STORES[settings.store.kind], settings.index_path
    if row.keeps_files and must_exist and not Path(path).expanduser().exists():
        raise StoreError(
            f"the index {path} does not exist yet; create it with qtm ingest and the same config"
        )
    module = import_module(f"qtmiddleware.kit.stores.{row.name}")
    opened: Store = module.open_store(settings, embedding_model=name, dimension=dimension)
    # Whoever ingests fills it; a service in the cloud is not asked for this alone.
    if must_exist and row.keeps_files and not opened.count():
        logger.warning(
            "the index at %s is empty; add documents with qtm ingest", path, event="index_empty"
        )
    return opened


def _build_search(
    store: Store, embedder: Embedder | None, settings: Settings
) -> tuple[Callable[..., list[Record]], Embedder | None]:
    """The search over *store*, and what embeds its queries where it takes vectors."""
    if isinstance(embedder, CallableEmbedder):
        embedder = embedder.queries
    if settings.hybrid.enabled:
        return HybridSearch(
            store, embedder, options=settings.hybrid, preprocess=settings.preprocess
        ), None

    def search(
        query: Any,
        top_k: int = settings.top_k,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        return store.search(query, top_k, filter=filter)

    return search, embedder
