"""Which client serves which call, and who closes it."""

from __future__ import annotations

import os
import sys
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import finalize

from qtmiddleware.errors import EmbeddingError, explained
from qtmiddleware.providers.http_clients import make_http_client, with_bounded_error_bodies

KEY_VARIABLE: Final = "OPENAI_API_KEY"
ADDRESS_VARIABLE: Final = "OPENAI_BASE_URL"
NO_KEY: Final = "none"
"""Sent to a server of the user's own where no key is set: such servers ask for none, but the client insists on one."""


class Clients:
    """The user's own client, never closed, or ours, made once a process."""

    def __init__(self, given: Any, base_url: str | None) -> None:
        self._given = given
        self._base_url = base_url
        # By process, as sockets do not survive a fork; `setdefault` is atomic, a lock might be held during a fork.
        self._by_process: dict[int, Any] = {}

    @property
    def host(self) -> str:
        """The host that is spoken to, without path, user or password."""
        address = self._address() if self._given is None else getattr(self._given, "base_url", "")
        try:
            return urlsplit(str(address or "")).hostname or "the default address"
        except ValueError:
            return "an address that cannot be read"

    def client(self) -> Any:
        """The client for a call; raises `EmbeddingError` where it is asynchronous or there is no key."""
        if self._given is not None:
            if _is_async(self._given):
                raise EmbeddingError("an async client cannot serve a synchronous call; pass openai.OpenAI()")
            return self._given
        process = os.getpid()
        client = self._by_process.get(process)
        if client is None:
            with explained(EmbeddingError):
                made = self._made()
            client = self._by_process.setdefault(process, made)
            if client is not made:
                made.close()
        return client

    def close(self) -> None:
        """Close our client of this process; the next call makes another."""
        client = self._by_process.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _address(self) -> str | None:
        return self._base_url or os.environ.get(ADDRESS_VARIABLE, "").strip() or None

    def _made(self) -> Any:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key and not self._address():
            raise EmbeddingError(
                f"there is no key for the embedding model: set {KEY_VARIABLE}, or {ADDRESS_VARIABLE} (base_url) for a"
                " server that needs none"
            )
        import openai

        own = make_http_client(is_async=False)
        made = openai.OpenAI(api_key=key or NO_KEY, base_url=self._address(), http_client=own)
        # As the vendor's own is: an embedder that nobody closed leaves no connection.
        finalize(made, own.close).atexit = False
        return made


def is_vendors(client: Any) -> bool:
    """Whether *client* is of the vendor's own classes and its ``create`` was not replaced by a tracing library."""
    vendor = sys.modules.get("openai")
    # By its real type: a double or a proxy may answer `isinstance` as the class it stands for.
    if vendor is None or not issubclass(type(client), vendor.OpenAI):
        return False
    return "create" not in vars(client.embeddings)


def retries_of(client: Any) -> int:
    """How often *client* would try again; 0 for one that is not the vendor's, which does as it likes by itself."""
    return int(client.max_retries) if is_vendors(client) else 0


def calmed(client: Any) -> Any:
    """*client* without the SDK's retries and with an end to the bodies of errors, sharing its connections.

    One we cannot copy stays as it is.
    """
    if not is_vendors(client):
        return client
    return client.with_options(max_retries=0, http_client=with_bounded_error_bodies(client._client))


def _is_async(client: Any) -> bool:
    """Whether *client* is an asynchronous one, told by the names of its classes."""
    return any(ancestor.__name__.startswith("Async") for ancestor in type(client).__mro__)
