"""Store passages in Pinecone.

A store uses one of:

- a dense index, with vectors of your own embedder;
- a dense and a sparse index together, to search by vectors and by words;
- an index that embeds texts itself.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any, Final

from qtmiddleware.config.kit_settings import StoreSettings
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.stores.pinecone.calls import TIMEOUT_SECONDS, call_with_timeout
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
_LOWEST_SDK: Final = 9
"""The oldest generation of Pinecone's SDK that the stores support."""


def open_pinecone(options: StoreSettings, *, embedding_model: str, dimension: int) -> Store:
    """Open the Pinecone store that *options* describe; closing the store also closes its client.

    The API key is read from ``PINECONE_API_KEY``. Pinecone is called once per index, unless the
    options give the host of the index. If the index embeds texts itself, *embedding_model* and
    *dimension* are ignored.

    Raises `ConfigError` if *options* name no index or contradict each other, or if Pinecone's SDK
    is older than version 9, and `StoreError` if the key or the index does not exist.
    """
    _check_options(options)
    _check_sdk_version()
    api_key = os.environ.get(KEY_VARIABLE, "").strip()
    if not api_key:
        raise StoreError(f"the key for Pinecone is missing: set {KEY_VARIABLE} in the environment")
    resources = ExitStack()
    try:
        return _build_store(api_key, options, embedding_model, dimension, resources)
    except BaseException:
        # There may be a client already, but no store that could close it.
        resources.close()
        raise


def _check_options(options: StoreSettings) -> None:
    """Raise `ConfigError` if *options* name no index or contradict each other."""
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


def _check_sdk_version() -> None:
    """Raise `ConfigError` if Pinecone's SDK is too old for the stores."""
    installed = version("pinecone")
    if int(installed.partition(".")[0]) < _LOWEST_SDK:
        raise ConfigError(
            f"store.kind pinecone needs pinecone {_LOWEST_SDK} or newer, not {installed}. Run: pip"
            f' install "pinecone>={_LOWEST_SDK}"',
            path="store.kind",
            value="pinecone",
        )


def _build_store(
    api_key: str, options: StoreSettings, embedding_model: str, dimension: int, resources: ExitStack
) -> Store:
    """Return the store that *options* describe.

    Adds the store's client and indexes to *resources*. Closing the store closes *resources*.
    """
    client = _open_client(api_key, resources)
    index = _open_index(client, options.index, options.host, resources)
    common: dict[str, Any] = {"namespace": options.namespace, "text_field": options.text_field}
    if options.integrated:
        return PineconeTextStore(index, **common, opened=resources)
    dense = {
        **common,
        "embedding_model": embedding_model,
        "dimension": dimension,
        "opened": resources,
    }
    if not options.sparse_index and not options.sparse_host:
        return PineconeStore(index, **dense)
    sparse_index = _open_index(client, options.sparse_index, options.sparse_host, resources)
    sparse = SparsePineconeStore(
        sparse_index, PineconeSparseEncoder(client, options.sparse_model), **common
    )
    return HybridPineconeStore(index, sparse=sparse, **dense)


def _open_client(api_key: str, resources: ExitStack) -> Any:
    """Open and return a Pinecone client. Closing *resources* also closes the client."""
    from pinecone import Pinecone

    made_with = f"made with the key of {KEY_VARIABLE}"
    client = call_with_timeout(
        TIMEOUT_SECONDS, lambda: Pinecone(api_key=api_key), "the client of Pinecone", made_with
    )
    resources.callback(client.close)
    return client


def _open_index(
    client: Any, index_name: str | None, index_host: str | None, resources: ExitStack
) -> Any:
    """Open the index at *index_host*; if that is ``None``, open the index *index_name*.

    Closing *resources* also closes the index.
    """
    address = {"host": index_host} if index_host else {"name": index_name}
    index = call_with_timeout(
        TIMEOUT_SECONDS,
        lambda: client.Index(**address),
        f"the Pinecone index {index_host or index_name!r}",
        "opened",
    )
    resources.callback(index.close)
    return index
