"""Store passages in a dense Pinecone index, with vectors of your own embedder."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any, Final

from qtmiddleware.config.settings import Settings, StoreSettings
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.stores.pinecone.calls import TIMEOUT_SECONDS, call_with_timeout
from qtmiddleware.kit.stores.pinecone.store import PineconeStore
from qtmiddleware.protocols import Store

__all__ = ["PineconeStore", "open_pinecone", "open_store"]


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> Store:
    """Open the Pinecone store that *settings* describe; see `open_pinecone`."""
    return open_pinecone(settings.store, embedding_model=embedding_model, dimension=dimension)


KEY_VARIABLE: Final = "PINECONE_API_KEY"
_LOWEST_SDK: Final = 9
"""The oldest generation of Pinecone's SDK that the store supports."""


def open_pinecone(options: StoreSettings, *, embedding_model: str, dimension: int) -> PineconeStore:
    """Open the Pinecone store that *options* describe; closing the store also closes its client.

    The API key is read from ``PINECONE_API_KEY``. Pinecone is called once, unless the options give
    the host of the index.

    Raises `ConfigError` if *options* name no index, or if Pinecone's SDK is older than version 9,
    and `StoreError` if the key or the index does not exist.
    """
    if not options.index and not options.host:
        raise ConfigError(
            "store.kind is pinecone, so store.index (its name) or store.host is needed",
            path="store.index",
            value=options.index,
            allowed="the name of an index",
        )
    _check_sdk_version()
    api_key = os.environ.get(KEY_VARIABLE, "").strip()
    if not api_key:
        raise StoreError(f"the key for Pinecone is missing: set {KEY_VARIABLE} in the environment")

    def open_index(resources: ExitStack) -> Any:
        return _open_index(_open_client(api_key, resources), options, resources)

    resources = ExitStack()
    try:
        return PineconeStore(
            open_index(resources),
            embedding_model=embedding_model,
            dimension=dimension,
            namespace=options.namespace,
            text_field=options.text_field,
            opened=resources,
            reopen=open_index,
        )
    except BaseException:
        # There may be a client already, but no store that could close it.
        resources.close()
        raise


def _check_sdk_version() -> None:
    """Raise `ConfigError` if Pinecone's SDK is too old for the store."""
    installed = version("pinecone")
    if int(installed.partition(".")[0]) < _LOWEST_SDK:
        raise ConfigError(
            f"store.kind pinecone needs pinecone {_LOWEST_SDK} or newer, not {installed}. Run: pip"
            f' install "pinecone>={_LOWEST_SDK}"',
            path="store.kind",
            value="pinecone",
        )


def _open_client(api_key: str, resources: ExitStack) -> Any:
    """Open and return a Pinecone client. Closing *resources* also closes the client."""
    from pinecone import Pinecone

    made_with = f"made with the key of {KEY_VARIABLE}"
    client = call_with_timeout(
        TIMEOUT_SECONDS, lambda: Pinecone(api_key=api_key), "the client of Pinecone", made_with
    )
    resources.callback(client.close)
    return client


def _open_index(client: Any, options: StoreSettings, resources: ExitStack) -> Any:
    """Open the index at the host in *options*; without a host, open the index of that name.

    Closing *resources* also closes the index.
    """
    address = {"host": options.host} if options.host else {"name": options.index}
    index = call_with_timeout(
        TIMEOUT_SECONDS,
        lambda: client.Index(**address),
        f"the Pinecone index {options.host or options.index!r}",
        "opened",
    )
    resources.callback(index.close)
    return index
