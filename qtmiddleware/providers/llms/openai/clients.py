"""Which client serves which call, and who closes it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, finalize, ref

from qtmiddleware.errors import ModelError, explained
from qtmiddleware.providers.http_clients import bound_error_bodies, make_http_client, with_bounded_error_bodies
from qtmiddleware.runtime.background_loop import await_in_background_loop, is_in_background_loop, run_in_background_loop
from qtmiddleware.runtime.draining import Draining

KEY_VARIABLE: Final = "OPENAI_API_KEY"
ADDRESS_VARIABLE: Final = "QTM_LLM_BASE_URL"
SDK_ADDRESS_VARIABLE: Final = "OPENAI_BASE_URL"
"""Read by the SDK itself, where there is no other address."""
NO_KEY: Final = "none"
"""Sent to a server of the user's own where no key is set: such servers ask for none, but the client insists on one."""
# So many seconds closing waits for the private loop, which a coroutine of the user's may hold up.
_CLOSE_SECONDS: Final = 5.0

_OfLoop = WeakKeyDictionary["Clients", tuple[Any, AsyncGenerator[None, None]]]
"""The async client that each of `Clients` has in one loop, with what closes it."""
# Loops hold their tasks weakly.
_closing: Final[set[asyncio.Task[None]]] = set()


class Clients:
    """A sync and an async client: the user's own, or ours, made on first use.

    Given clients are never closed. Ours are made once a process, since sockets do not survive a fork, and once an
    event loop, since they do not survive its end either; when a loop shuts down, its client is closed in it. The client
    of the private loop serves the blocking calls of those who gave an async one alone, until `close`.

    For the same reasons a given client is copied, with connections of the copy's own, in a forked process, and an async
    one in every loop: an idle connection that we left in it would fail, or hang, the caller's own next call in another
    loop. One that cannot be copied so (`can_move`) is used as it is.

    Whoever asks for a client and uses it does so within *in_use*, so that `Draining.retire` of it closes none of ours
    under a call.
    """

    def __init__(self, given: Any, base_url: str | None) -> None:
        members = given if isinstance(given, tuple | list) else () if given is None else (given,)
        self._base_url = base_url
        self._own = not members
        self._given_sync = next((member for member in members if not is_async_client(member)), None)
        self._given_async = next((member for member in members if is_async_client(member)), None)
        self._calm_sync: Any = None
        self._process = os.getpid()
        # The process in whose private loop there is a client to close.
        self._in_background: int | None = None
        # A plain dict whose `setdefault` is atomic: a lock could be held by another thread at the moment of a fork. The
        # client of a parent process stays in its place unused, for to close it here would be to wait for its locks.
        self._by_process: dict[int, Any] = {}
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
        given = self._given_sync if self._given_sync is not None else self._given_async
        if given is not None:
            return _host_of(str(getattr(given, "base_url", "")))
        return _host_of(_address(self._base_url) or os.environ.get(SDK_ADDRESS_VARIABLE, ""))

    def sync(self) -> Any:
        """The client for a synchronous call, without retries, where one was given or none at all."""
        given = self._given_sync
        if given is not None and (os.getpid() == self._process or not can_move(given)):
            if can_stream(given) and given.is_closed():
                # Its copy would not know of that, and open its connections once more.
                return given
            if self._calm_sync is None:
                self._calm_sync = calmed(given)
            return self._calm_sync
        process = os.getpid()
        client = self._by_process.get(process)
        if client is None:
            with explained(partial(ModelError, "unavailable")):
                made = self._make(is_async=False) if self._own else moved(given).with_options(max_retries=0)
            client = self._by_process.setdefault(process, made)
            if client is not made:
                made.close()
        return client

    async def asynchronous(self) -> Any:
        """The client for a call in the running event loop; raises `ModelError` where only a sync one was given."""
        given = self._given_async
        if not self._own and given is None:
            raise ModelError(
                "unavailable", "a sync client cannot serve an asynchronous call; pass openai.AsyncOpenAI()"
            )
        if not self._own and not can_move(given):
            return given
        loop = asyncio.get_running_loop()
        clients = _clients_of(loop)
        held = clients.get(self)
        if held is None or held[0].is_closed():
            with explained(partial(ModelError, "unavailable")):
                client = self._make(is_async=True) if self._own else moved(given)
            held = clients[self] = client, _close_at_end(client)
            self._loops = {key: it for key, it in self._loops.items() if it() is not None} | {id(loop): ref(loop)}
            if is_in_background_loop():
                self._in_background = os.getpid()
            await anext(held[1])
        return held[0]

    def close(self) -> None:
        """Close our clients of this process and of the private loop; the next call makes others."""
        self._close_sync()
        if self._was_in_background():
            with suppress(TimeoutError):
                run_in_background_loop(self._close_here, _CLOSE_SECONDS)

    async def aclose(self) -> None:
        """Close our clients of this process, of the running event loop and of the private one."""
        self._close_sync()
        await self._close_here()
        if self._was_in_background():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await await_in_background_loop(self._close_here)

    def _close_without_waiting(self) -> None:
        """Close our client of this process, and let every event loop close its own."""
        self._close_sync()
        for held in self._loops.values():
            loop = held()
            _, lifetime = (None, None) if loop is None else _clients_of(loop).pop(self, (None, None))
            # A loop that has ended has closed it.
            with suppress(RuntimeError):
                if loop is not None and lifetime is not None:
                    loop.call_soon_threadsafe(_close_soon, lifetime)

    def _close_sync(self) -> None:
        client = self._by_process.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _was_in_background(self) -> bool:
        used, self._in_background = self._in_background, None
        return used == os.getpid()

    async def _close_here(self) -> None:
        _, lifetime = _clients_of(asyncio.get_running_loop()).pop(self, (None, None))
        if lifetime is not None:
            await lifetime.aclose()

    def _make(self, *, is_async: bool) -> Any:
        address = _address(self._base_url)
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not is_reachable(self._base_url):
            raise ModelError(
                "unauthorized",
                f"there is no key for the language model: set {KEY_VARIABLE}, or {ADDRESS_VARIABLE} (llm.baseUrl) for"
                " a server that needs none",
            )
        import openai

        # A retry would sleep for as long as a busy service says, and nobody would hear what it said.
        own = make_http_client(is_async=is_async)
        kind: Any = openai.AsyncOpenAI if is_async else openai.OpenAI
        made = kind(api_key=key or NO_KEY, base_url=address, max_retries=0, http_client=own)
        if not is_async:
            # As the vendor's own is: a model that nobody closed leaves no connection. Async ones end with their loop.
            finalize(made, own.close).atexit = False
        return made


def _clients_of(loop: asyncio.AbstractEventLoop) -> _OfLoop:
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


def account_of(base_url: str | None) -> int:
    """A number that stands for the address and the key that clients of our own are made with now."""
    # The key itself is to stand nowhere else.
    address = _address(base_url) or os.environ.get(SDK_ADDRESS_VARIABLE, "").strip()
    return hash((address, os.environ.get(KEY_VARIABLE, "").strip()))


def is_reachable(base_url: str | None) -> bool:
    """Whether there is a key, or the address of a service that may need none."""
    variables = (KEY_VARIABLE, ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE)
    return bool(base_url) or any(os.environ.get(name, "").strip() for name in variables)


def _address(base_url: str | None) -> str | None:
    return base_url or os.environ.get(ADDRESS_VARIABLE, "").strip() or None


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ("an address without a host" if address else "the default address")
    except ValueError:
        return "an address that cannot be read"


def is_async_client(client: Any) -> bool:
    """Whether *client* is an asynchronous one, told by the names of its classes."""
    return any(ancestor.__name__.startswith("Async") for ancestor in type(client).__mro__)


def can_move(client: Any) -> bool:
    """Whether *client* is one of the vendor's whose connections a copy can do without.

    It made them itself, or they are those of an ordinary asynchronous `httpx` client it was given.
    """
    if not can_stream(client):
        return False
    return _has_own_connections(client) or (
        is_async_client(client) and _has_known_pools(getattr(client, "_client", None))
    )


def _has_own_connections(client: Any) -> bool:
    return type(getattr(client, "_client", None)).__name__.endswith("HttpxClientWrapper")


def _transports_of(http: Any) -> list[Any]:
    mounts = getattr(http, "_mounts", {})
    return [getattr(http, "_transport", None), *(it for it in mounts.values() if it is not None)]


def _has_known_pools(http: Any) -> bool:
    pools = [getattr(transport, "_pool", None) for transport in _transports_of(http)]
    return all(isinstance(getattr(pool, "_connections", None), list) and hasattr(pool, "_requests") for pool in pools)


def moved(client: Any) -> Any:
    """*client* with connections of its own and an end to the bodies of errors."""
    if _has_own_connections(client):
        own = make_http_client(is_async=is_async_client(client), base_url=client.base_url, follow_redirects=True)
    else:
        own = _with_empty_pools(client._client)
        bound_error_bodies(own)
    return client.with_options(http_client=own)


def _with_empty_pools(http: Any) -> Any:
    """A copy of the client *http* of `httpx`, with its proxies, certificates and hooks, and no connection yet."""
    twin = copy(http)
    twin._transport = _with_empty_pool(http._transport)
    twin._mounts = {pattern: it and _with_empty_pool(it) for pattern, it in http._mounts.items()}
    return twin


def _with_empty_pool(transport: Any) -> Any:
    twin = copy(transport)
    twin._pool = copy(transport._pool)
    twin._pool._connections, twin._pool._requests = [], []
    return twin


def can_stream(client: Any) -> bool:
    """Whether the body of *client*'s answers can be read piece by piece.

    True for the vendor's own classes. A wrapper, a double or a client whose ``create`` was replaced by a tracing
    library is called in the plain way, so that what it adds is not bypassed.
    """
    vendor = sys.modules.get("openai")
    # By its real type: a double or a proxy may answer `isinstance` as the class it stands for.
    if vendor is None or not issubclass(type(client), (vendor.OpenAI, vendor.AsyncOpenAI)):
        return False
    return "create" not in vars(client.chat.completions)


def calmed(client: Any) -> Any:
    """*client* without the SDK's retries and with an end to the bodies of errors, sharing its connections.

    One we cannot copy stays as it is.
    """
    if not can_stream(client):
        return client
    return client.with_options(max_retries=0, http_client=with_bounded_error_bodies(client._client))
