"""Stores on Pinecone.

A store uses one of:

- a dense index, with vectors of your own embedder;
- a dense and a sparse index together, to search by vectors and by words;
- an index that embeds texts itself.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, Final

from qtmiddleware.config.kit_settings import StoreSettings
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.stores.pinecone.calls import TIMEOUT_SECONDS, call_within
from qtmiddleware.kit.stores.pinecone.indexes import (
    HybridPineconeStore,
    PineconeSparseEncoder,
    PineconeStore,
    PineconeTextStore,
    SparsePineconeStore,
)
from qtmiddleware.protocols import Store

__all__ = [
    "HybridPineconeStore",
    "PineconeSparseEncoder",
    "PineconeStore",
    "PineconeTextStore",
    "SparsePineconeStore",
    "open_pinecone",
    "open_store",
]


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> Store:
    """Open the Pinecone store that *settings* describe; see `open_pinecone`."""
    return open_pinecone(settings.store, embedding_model=embedding_model, dimension=dimension)


KEY_VARIABLE: Final = "PINECONE_API_KEY"


def open_pinecone(options: StoreSettings, *, embedding_model: str, dimension: int) -> Store:
    """Open the Pinecone store that *options* describe; closing the store also closes its client.

    The API key is read from ``PINECONE_API_KEY``. An index given by name takes one request, and an
    index given by host takes none. After that, Pinecone is called only when the store is used. If
    the index embeds texts itself, *embedding_model* and *dimension* are ignored.

    Raises `ConfigError` if options contradict each other, and `StoreError` if the key or the index
    does not exist.
    """
    _check_options(options)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise StoreError(f"the key for Pinecone is missing: set {KEY_VARIABLE} in the environment")
    opened = ExitStack()
    try:
        return _build_store(key, options, embedding_model, dimension, opened)
    except BaseException:
        opened.close()
        raise


def _check_options(options: StoreSettings) -> None:
    """Raise `ConfigError` if *options* name no index, or contradict each other."""
    if not options.index and not options.host:
        raise ConfigError(
            "store.kind is pinecone, so store.index (its name) or store.host is needed",
            path="store.index",
            value=options.index,
            allowed="the name of an index",
        )
    if options.integrated and (options.sparse_index or options.sparse_host):
        path = "store.sparseIndex" if options.sparse_index else "store.sparseHost"
        raise ConfigError(
            f"{path} needs vectors of your own embedder; it cannot be used with store.integrated",
            path=path,
            value=options.sparse_index or options.sparse_host,
            allowed="null if store.integrated is true",
        )


def _build_store(
    key: str, options: StoreSettings, embedding_model: str, dimension: int, opened: ExitStack
) -> Store:
    """Return the store that *options* describe.

    Its client and indexes are added to *opened*, so that they are closed together with the store.
    """
    client = _open_client(key, opened)
    index = _open_index(client, options.index, options.host, opened)
    place: dict[str, Any] = {"namespace": options.namespace, "text_field": options.text_field}
    if options.integrated:
        return PineconeTextStore(index, **place, opened=opened)
    dense = {**place, "embedding_model": embedding_model, "dimension": dimension, "opened": opened}
    if not options.sparse_index and not options.sparse_host:
        return PineconeStore(index, **dense)
    sparse_index = _open_index(client, options.sparse_index, options.sparse_host, opened)
    sparse = SparsePineconeStore(
        sparse_index, PineconeSparseEncoder(client, options.sparse_model), **place
    )
    return HybridPineconeStore(index, sparse=sparse, **dense)


def _open_client(key: str, opened: ExitStack) -> Any:
    """Return a Pinecone client; closing *opened* closes the client."""
    from pinecone import Pinecone

    made_with = f"made with the key of {KEY_VARIABLE}"
    client = call_within(
        TIMEOUT_SECONDS, lambda: Pinecone(api_key=key), "the client of Pinecone", made_with
    )
    _register_for_closing(opened, client)
    return client


def _open_index(client: Any, name: str | None, host: str | None, opened: ExitStack) -> Any:
    """Return the index at *host*; without a host, the index called *name*.

    Closing *opened* closes the index.
    """
    address = {"host": host} if host else {"name": name}
    index = call_within(
        TIMEOUT_SECONDS,
        lambda: client.Index(**address),
        f"the Pinecone index {host or name!r}",
        "opened",
    )
    _register_for_closing(opened, index)
    return index


def _register_for_closing(opened: ExitStack, resource: Any) -> None:
    """Register *resource* to be closed when *opened* is closed."""
    # Older clients have no `close`.
    if callable(close := getattr(resource, "close", None)):
        opened.callback(close)
