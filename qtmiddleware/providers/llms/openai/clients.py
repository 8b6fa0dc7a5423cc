"""Which client serves which call of a model, and who closes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from qtmiddleware.errors import ModelError, explained
from qtmiddleware.providers.openai_client import (
    DEFAULT_ADDRESS,
    KEY_VARIABLE,
    SDK_ADDRESS_VARIABLE,
    ClientPerProcess,
    bound_error_bodies,
    copy_without_retries,
    is_async_client,
    is_vendor_client,
    make_client,
    make_http_client,
    read_host,
    read_key,
    read_server,
)
from qtmiddleware.runtime.background_loop import (
    await_in_background_loop,
    is_in_background_loop,
    run_in_background_loop,
)
from qtmiddleware.runtime.forking import Draining

ADDRESS_VARIABLE: Final = "QTM_LLM_BASE_URL"
_RESOURCE: Final = "chat.completions"
# So many seconds closing waits for the private loop, which a coroutine of the user's may hold up.
_CLOSE_SECONDS: Final = 5.0

_OfLoop = WeakKeyDictionary["Clients", tuple[Any, AsyncGenerator[None, None]]]
"""The async client that each of `Clients` has in one loop, with what closes it."""
# Loops hold their tasks weakly.
_closing: Final[set[asyncio.Task[None]]] = set()


class Clients:
    """A sync and an async client: the user's own, or ours, made on first use.

    Given clients are never closed. Ours are made once a process, since sockets do not survive a
    fork, and once an event loop, since they do not survive its end either; when a loop shuts down,
    its client is closed in it. The client of the private loop serves the blocking calls of those
    who gave an async one alone, until `close`.

    For the same reasons a given client is copied, with connections of the copy's own, in a forked
    process, and an async one in every loop: an idle connection that we left in it would fail, or
    hang, the caller's own next call in another loop. One that cannot be copied so (`can_copy`) is
    used as it is.

    Whoever asks for a client and uses it does so within *in_use*, so that `Draining.retire` of it
    closes none of ours under a call.
    """

    _async_kind = "openai.AsyncOpenAI()"

    def __init__(self, given: Any, base_url: str | None) -> None:
        members = given if isinstance(given, tuple | list) else () if given is None else (given,)
        self._base_url = base_url
        self._own = not members
        self._given_sync = next((member for member in members if not is_async_client(member)), None)
        self._given_async = next((member for member in members if is_async_client(member)), None)
        self._process = os.getpid()
        # The process in whose private loop there is a client to close.
        self._in_background: int | None = None
        self._per_process = ClientPerProcess()
        # The loops that hold a client of ours, weakly: to close them from elsewhere.
        self._loops: dict[int, ref[asyncio.AbstractEventLoop]] = {}
        self.in_use: Final = Draining(self._close_without_waiting)

    @property
    def can_block(self) -> bool:
        """Whether there is a client for synchronous calls."""
        return self._own or self._given_sync is not None

    @property
    def can_async(self) -> bool:
        """Whether there is a client for asynchronous calls."""
        return self._own or self._given_async is not None

    @property
    def host(self) -> str:
        """The host that is spoken to, without path, user or password."""
        return read_host(self._find_address())

    @property
    def server(self) -> tuple[str, int] | None:
        """The host and port that are spoken to; ``None`` where a given client does not tell them."""
        return read_server(self._find_address() or (DEFAULT_ADDRESS if self._own else ""))

    def _find_address(self) -> str:
        given = self._given_sync if self._given_sync is not None else self._given_async
        return (
            _read_address(self._base_url) if given is None else str(getattr(given, "base_url", ""))
        )

    def sync(self) -> Any:
        """The client for a synchronous call, without retries, where one was given or none at all."""
        given = self._given_sync
        if given is None or (os.getpid() != self._process and can_copy(given)):
            return self._per_process.get(self._make_sync)
        if not can_stream(given) or given.is_closed():
            # A copy would not know that it is closed, and open its connections once more.
            return given
        return copy_without_retries(given)

    async def asynchronous(self) -> Any:
        """The client for a call in the running event loop; raises `ModelError` where only a sync one was given."""
        given = self._given_async
        if not self._own and given is None:
            raise ModelError(
                "unavailable",
                "the client must be asynchronous for an asynchronous call; pass"
                f" {self._async_kind}",
            )
        if not self._own and not self._can_copy(given):
            return given
        loop = asyncio.get_running_loop()
        clients = _find_clients(loop)
        held = clients.get(self)
        if held is None or held[0].is_closed():
            with explained(partial(ModelError, "unavailable")):
                client = self._make(is_async=True) if self._own else self._copy(given)
            held = clients[self] = client, _close_at_end(client)
            self._loops = {key: it for key, it in self._loops.items() if it() is not None} | {
                id(loop): ref(loop)
            }
            if is_in_background_loop():
                self._in_background = os.getpid()
            await anext(held[1])
        return held[0]

    def close(self) -> None:
        """Close our clients of this process and of the private loop; the next call makes others."""
        self._per_process.close()
        if self._was_in_background():
            with suppress(TimeoutError):
                run_in_background_loop(self._close_here, _CLOSE_SECONDS)

    async def aclose(self) -> None:
        """Close our clients of this process, of the running event loop and of the private one."""
        self._per_process.close()
        await self._close_here()
        if self._was_in_background():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await await_in_background_loop(self._close_here)

    def _close_without_waiting(self) -> None:
        """Close our client of this process, and let every event loop close its own."""
        self._per_process.close()
        for held in self._loops.values():
            loop = held()
            _, lifetime = (
                (None, None) if loop is None else _find_clients(loop).pop(self, (None, None))
            )
            # A loop that has ended has closed it.
            with suppress(RuntimeError):
                if loop is not None and lifetime is not None:
                    loop.call_soon_threadsafe(_close_soon, lifetime)

    def _was_in_background(self) -> bool:
        used, self._in_background = self._in_background, None
        return used == os.getpid()

    async def _close_here(self) -> None:
        _, lifetime = _find_clients(asyncio.get_running_loop()).pop(self, (None, None))
        if lifetime is not None:
            await lifetime.aclose()

    def _can_copy(self, given: Any) -> bool:
        return can_copy(given)

    def _copy(self, given: Any) -> Any:
        return copy_with_own_connections(given)

    def _make_sync(self) -> Any:
        with explained(partial(ModelError, "unavailable")):
            if self._own:
                return self._make(is_async=False)
            return copy_with_own_connections(self._given_sync).with_options(max_retries=0)

    def _make(self, *, is_async: bool) -> Any:
        if not is_reachable(self._base_url):
            raise ModelError(
                "unauthorized",
                f"the key for the language model is missing: set {KEY_VARIABLE}, or"
                f" {ADDRESS_VARIABLE} (llm.baseUrl) for a server that needs no key",
            )
        # A retry would sleep for as long as a busy service says, and nobody would hear what it
        # said.
        return make_client(
            is_async=is_async, address=_read_own_address(self._base_url), max_retries=0
        )


def _find_clients(loop: asyncio.AbstractEventLoop) -> _OfLoop:
    """The clients of *loop*, which holds them itself: they refer to it, and whoever else held them would hold it too.

    So a loop that somebody drops without closing it goes with its clients, sockets and all.
    """
    try:
        return loop._qtmiddleware_clients  # type: ignore[attr-defined,no-any-return]
    except AttributeError:
        made: _OfLoop = WeakKeyDictionary()
        loop._qtmiddleware_clients = made  # type: ignore[attr-defined]
        return made


def _close_soon(lifetime: AsyncGenerator[None, None]) -> None:
    async def close() -> None:
        # It may be closed already, as its loop may be about to end.
        with suppress(RuntimeError):
            await lifetime.aclose()

    task = asyncio.get_running_loop().create_task(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close_at_end(client: Any) -> AsyncGenerator[None, None]:
    """Lives as long as the running loop, which closes the generators begun in it when it shuts down, and so *client*.

    Whose model is gone is closed as well, for nobody holds this any more.
    """
    try:
        yield
    finally:
        await client.close()


def identify_account(base_url: str | None) -> int:
    """A number that stands for the address and the key that clients of our own are made with now."""
    # The key itself is to stand nowhere else.
    return hash((_read_address(base_url), read_key()))


def is_reachable(base_url: str | None) -> bool:
    """Whether there is a key, or the address of a service that may need none."""
    return bool(_read_address(base_url) or read_key())


def _read_own_address(base_url: str | None) -> str | None:
    return base_url or os.environ.get(ADDRESS_VARIABLE, "").strip() or None


def _read_address(base_url: str | None) -> str:
    """The address clients of our own speak to, ``""`` for the SDK's default."""
    return _read_own_address(base_url) or os.environ.get(SDK_ADDRESS_VARIABLE, "").strip()


def can_stream(client: Any) -> bool:
    """Whether the body of *client*'s answers can be read piece by piece, as `is_vendor_client` says."""
    return is_vendor_client(client, _RESOURCE)


def can_copy(client: Any) -> bool:
    """Whether *client* is one of the vendor's whose connections a copy can do without.

    It made them itself, or they are those of an ordinary asynchronous `httpx` client it was given.
    """
    if not can_stream(client):
        return False
    return _has_own_connections(client) or (
        is_async_client(client) and has_known_pools(getattr(client, "_client", None))
    )


def copy_with_own_connections(client: Any) -> Any:
    """A copy of *client* with connections of its own and an end to the bodies of errors."""
    if _has_own_connections(client):
        http = make_http_client(
            is_async=is_async_client(client), base_url=client.base_url, follow_redirects=True
        )
    else:
        http = copy_with_empty_pools(client._client)
        bound_error_bodies(http)
    return client.with_options(http_client=http)


def _has_own_connections(client: Any) -> bool:
    return type(getattr(client, "_client", None)).__name__.endswith("HttpxClientWrapper")


def has_known_pools(http: Any) -> bool:
    """Whether the connections of *http*, a client of `httpx`, lie where `copy_with_empty_pools` leaves them."""
    mounts = getattr(http, "_mounts", {}).values()
    transports = [getattr(http, "_transport", None), *(it for it in mounts if it is not None)]
    pools = [getattr(transport, "_pool", None) for transport in transports]
    return all(
        isinstance(getattr(pool, "_connections", None), list) and hasattr(pool, "_requests")
        for pool in pools
    )


def copy_with_empty_pools(http: Any) -> Any:
    """A copy of the client *http* of `httpx`, with its proxies, certificates and hooks, and no connection yet."""
    twin = copy(http)
    twin._transport = _copy_with_empty_pool(http._transport)
    twin._mounts = {
        pattern: it and _copy_with_empty_pool(it) for pattern, it in http._mounts.items()
    }
    return twin


def _copy_with_empty_pool(transport: Any) -> Any:
    twin = copy(transport)
    twin._pool = copy(transport._pool)
    twin._pool._connections, twin._pool._requests = [], []
    return twin
