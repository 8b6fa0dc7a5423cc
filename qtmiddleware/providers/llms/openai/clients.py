"""Choose the client for each model call, and close the clients that this package made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from qtmiddleware.errors import ModelError, explain_client_errors
from qtmiddleware.providers.openai_client import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    copy_without_retries,
    is_async_client,
    is_vendor_client,
    limit_error_bodies,
    make_client,
    make_http_client,
    read_api_key,
    read_host,
    read_host_and_port,
)
from qtmiddleware.runtime.background_loop import (
    await_in_background_loop,
    is_in_background_loop,
    run_in_background_loop,
)
from qtmiddleware.runtime.forking import leave_to_parent, make_lock, register_fork_reset

ADDRESS_VARIABLE: Final = "QTM_LLM_BASE_URL"
_RESOURCE: Final = "chat.completions"
# How many seconds closing waits for the background loop, which a user's coroutine may block.
_CLOSE_SECONDS: Final = 5.0

_LoopClients = WeakKeyDictionary["Clients", tuple[Any, AsyncGenerator[None, None]]]
"""One event loop's async clients, each with the generator that closes the client."""


class Clients:
    """Holds a sync and an async client, given by the user or made on first use.

    The user's clients are never closed. A forked process makes new clients, because sockets do not
    survive a fork. An async client belongs to one event loop, and is closed when that loop shuts
    down. If the user gave only an async client, synchronous calls use a copy in the background loop
    until `close`. Clients that nobody refers to any more, such as those of a former config, are
    closed by the garbage collector.

    A user's client is copied in each forked process. An async client is also copied in each event
    loop. The copy has its own connections: if two loops shared connections, an idle connection of
    one loop could make the next call in the other loop fail or hang. A client that cannot be copied
    (`can_copy`) is used directly.
    """

    def __init__(self, client: Any, base_url: str | None) -> None:
        members = (
            client if isinstance(client, tuple | list) else () if client is None else (client,)
        )
        self._base_url = base_url
        self._makes_clients = not members
        self._user_sync_client = next(
            (member for member in members if not is_async_client(member)), None
        )
        self._user_async_client = next(
            (member for member in members if is_async_client(member)), None
        )
        self._lock = make_lock()
        self._sync_client: Any = None
        self._is_forked = False
        self._has_background_client = False
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Leave the clients to the parent process after a fork."""
        leave_to_parent(self._sync_client)
        self._sync_client, self._is_forked, self._has_background_client = None, True, False

    @property
    def has_sync_client(self) -> bool:
        """Whether there is a client for synchronous calls."""
        return self._makes_clients or self._user_sync_client is not None

    @property
    def has_async_client(self) -> bool:
        """Whether there is a client for asynchronous calls."""
        return self._makes_clients or self._user_async_client is not None

    @property
    def host(self) -> str:
        """The server's host, without path, user or password."""
        return read_host(self._find_client_address())

    @property
    def address(self) -> str:
        """The server's base URL; ``""`` if the user's client does not show it."""
        address = self._find_client_address() or (DEFAULT_ADDRESS if self._makes_clients else "")
        return address.rstrip("/")

    @property
    def server(self) -> tuple[str, int] | None:
        """The server's host and port; ``None`` if the user's client does not show them."""
        return read_host_and_port(self.address)

    def _find_client_address(self) -> str:
        client = (
            self._user_sync_client
            if self._user_sync_client is not None
            else self._user_async_client
        )
        return (
            _resolve_address(self._base_url)
            if client is None
            else str(getattr(client, "base_url", ""))
        )

    def get_sync_client(self) -> Any:
        """Return the client for a synchronous call.

        This is a copy of the user's client that does not retry. A client that cannot be copied is
        returned unchanged. If the user gave no client, a client made here is returned.
        """
        client = self._user_sync_client
        if client is None or (self._is_forked and can_copy(client)):
            with self._lock:
                if self._sync_client is None:
                    self._sync_client = self._make_sync_client()
                return self._sync_client
        if not can_stream(client) or client.is_closed():
            # A copy of a closed client would open its connections again.
            return client
        return copy_without_retries(client)

    async def get_async_client(self) -> Any:
        """Return the client for a call in the running event loop.

        This is a copy of the user's async client, made for this loop. A client that cannot be
        copied is returned unchanged. If the user gave no client, a client made for this loop is
        returned. Raises `ModelError` if the user gave only a sync client.
        """
        given_client = self._user_async_client
        if not self._makes_clients and given_client is None:
            raise ModelError(
                "unavailable",
                "the client must be asynchronous for an asynchronous call; pass"
                " openai.AsyncOpenAI()",
            )
        if not self._makes_clients and not can_copy(given_client):
            return given_client
        loop = asyncio.get_running_loop()
        clients = _find_loop_clients(loop)
        client_and_lifetime = clients.get(self)
        if client_and_lifetime is None or client_and_lifetime[0].is_closed():
            with explain_client_errors(partial(ModelError, "unavailable")):
                client = (
                    self._make_client(is_async=True)
                    if self._makes_clients
                    else copy_with_own_connections(given_client)
                )
            client_and_lifetime = clients[self] = client, _manage_client_lifetime(client)
            self._has_background_client |= is_in_background_loop()
            # Started here, so that this loop closes the generator, and with it the client, when it
            # shuts down.
            await anext(client_and_lifetime[1])
        return client_and_lifetime[0]

    def close(self) -> None:
        """Close the sync client that this object made, and the background loop's client.

        The user's clients stay open. The next call makes new clients.
        """
        self._close_sync_client()
        if self._forget_background_client():
            with suppress(TimeoutError):
                run_in_background_loop(self._close_client_in_running_loop, _CLOSE_SECONDS)

    async def aclose(self) -> None:
        """Close the sync client, and the clients of the background loop and the running event loop.

        The user's clients stay open. The next call makes new clients.
        """
        self._close_sync_client()
        await self._close_client_in_running_loop()
        if self._forget_background_client():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await await_in_background_loop(self._close_client_in_running_loop)

    def _close_sync_client(self) -> None:
        with self._lock:
            client, self._sync_client = self._sync_client, None
        if client is not None:
            client.close()

    def _forget_background_client(self) -> bool:
        """Forget the client in the background loop, and return whether there was one to close."""
        has_client, self._has_background_client = self._has_background_client, False
        return has_client

    async def _close_client_in_running_loop(self) -> None:
        """Close the client that was made for the running event loop."""
        _, lifetime = _find_loop_clients(asyncio.get_running_loop()).pop(self, (None, None))
        if lifetime is not None:
            await lifetime.aclose()

    def _make_sync_client(self) -> Any:
        with explain_client_errors(partial(ModelError, "unavailable")):
            if self._makes_clients:
                return self._make_client(is_async=False)
            return copy_with_own_connections(self._user_sync_client).with_options(max_retries=0)

    def _make_client(self, *, is_async: bool) -> Any:
        if not is_service_configured(self._base_url):
            raise ModelError(
                "unauthorized",
                f"the key for the language model is missing: set {KEY_VARIABLE}, or"
                f" {ADDRESS_VARIABLE} (llm.baseUrl) for a server that needs no key",
            )
        # A retry would sleep for as long as a busy service says, and hide what the service said.
        return make_client(
            is_async=is_async, address=_find_configured_address(self._base_url), max_retries=0
        )


def _find_loop_clients(loop: asyncio.AbstractEventLoop) -> _LoopClients:
    """Return the clients that were made for *loop*, keyed by the `Clients` that made them.

    The clients are stored in an attribute of *loop*. So the loop, the clients and their sockets are
    freed together, even if the loop is never closed. A module-level table would keep the loop
    alive, because the clients refer to the loop.
    """
    try:
        return loop._qtmiddleware_clients  # type: ignore[attr-defined,no-any-return]
    except AttributeError:
        clients: _LoopClients = WeakKeyDictionary()
        loop._qtmiddleware_clients = clients  # type: ignore[attr-defined]
        return clients


async def _manage_client_lifetime(client: Any) -> AsyncGenerator[None, None]:
    """Close *client* when the running event loop shuts down, or when this generator is freed.

    This is a generator because an event loop, on shutdown, closes the async generators that were
    started in the loop.
    """
    try:
        yield
    finally:
        await client.close()


def hash_address_and_key(base_url: str | None) -> int:
    """Return a hash of the address and the key that new clients use."""
    # A hash, so that the key itself is stored nowhere else.
    return hash((_resolve_address(base_url), read_api_key()))


def is_service_configured(base_url: str | None) -> bool:
    """Return whether an API key or a service's address is configured.

    The address is *base_url* or comes from the environment. An address is enough, because a user's
    own server may need no key.
    """
    return bool(_resolve_address(base_url) or read_api_key())


def _find_configured_address(base_url: str | None) -> str | None:
    """Return *base_url*, else the address in ``QTM_LLM_BASE_URL``, else ``None``."""
    return base_url or os.environ.get(ADDRESS_VARIABLE, "").strip() or None


def _resolve_address(base_url: str | None) -> str:
    """Return the address for new clients; ``""`` if they use the SDK's default.

    The address is *base_url*, or else ``QTM_LLM_BASE_URL``, or else ``OPENAI_BASE_URL``.
    """
    return _find_configured_address(base_url) or os.environ.get(SDK_ADDRESS_VARIABLE, "").strip()


def can_stream(client: Any) -> bool:
    """Return whether *client* can stream its answers.

    Only an unchanged client of the SDK can stream. `is_vendor_client` recognises such a client.
    """
    return is_vendor_client(client, _RESOURCE)


def can_copy(client: Any) -> bool:
    """Return whether `copy_with_own_connections` can copy *client*.

    *client* must be an unmodified SDK client that uses the SDK's default HTTP client. An async
    client may instead use a plain `httpx2` client that the user passed in.
    """
    if not can_stream(client):
        return False
    return _has_own_connections(client) or (
        is_async_client(client) and has_copyable_pools(getattr(client, "_client", None))
    )


def copy_with_own_connections(client: Any) -> Any:
    """Return a copy of *client* with its own connections and with limited error bodies."""
    if _has_own_connections(client):
        http = make_http_client(
            is_async=is_async_client(client), base_url=client.base_url, follow_redirects=True
        )
    else:
        http = copy_with_empty_pools(client._client)
        limit_error_bodies(http)
    return client.with_options(http_client=http)


def _has_own_connections(client: Any) -> bool:
    # The SDK uses this subclass only if the user passed no HTTP client.
    return type(getattr(client, "_client", None)).__name__.endswith("HttpxClientWrapper")


def has_copyable_pools(http_client: Any) -> bool:
    """Return whether `copy_with_empty_pools` can copy *http_client*, an `httpx2` client."""
    # These attributes are private, so another version of the library may lack them.
    mounts = getattr(http_client, "_mounts", {}).values()
    transports = [
        getattr(http_client, "_transport", None),
        *(transport for transport in mounts if transport is not None),
    ]
    pools = [getattr(transport, "_pool", None) for transport in transports]
    return all(
        isinstance(getattr(pool, "_connections", None), list) and hasattr(pool, "_requests")
        for pool in pools
    )


def copy_with_empty_pools(http_client: Any) -> Any:
    """Return a copy of *http_client*, an `httpx2` client, that opens its own connections.

    The copy has the proxies, certificates and hooks of *http_client*.
    """
    http_copy = copy(http_client)
    http_copy._transport = _copy_with_empty_pool(http_client._transport)
    http_copy._mounts = {
        pattern: transport and _copy_with_empty_pool(transport)
        for pattern, transport in http_client._mounts.items()
    }
    return http_copy


def _copy_with_empty_pool(transport: Any) -> Any:
    transport_copy = copy(transport)
    transport_copy._pool = copy(transport._pool)
    transport_copy._pool._connections, transport_copy._pool._requests = [], []
    return transport_copy
