"""Make and choose clients of the ``openai`` package, and name the service that a client calls."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from qtmiddleware.errors import ModelError, explain_client_errors
from qtmiddleware.runtime.forking import MadeOnce, leave_to_parent, register_fork_reset
from qtmiddleware.runtime.io import run_in_thread

ADDRESS_VARIABLE: Final = "QTM_LLM_BASE_URL"
KEY_VARIABLE: Final = "OPENAI_API_KEY"
SDK_ADDRESS_VARIABLE: Final = "OPENAI_BASE_URL"
"""The environment variable that the SDK reads if no other address is set."""
DEFAULT_ADDRESS: Final = "https://api.openai.com/v1"
"""The SDK's default address."""

_PORTS: Final = {"http": 80, "https": 443}
_PROVIDERS: Final = {
    "openai.azure.com": "azure.ai.openai",
    "amazonaws.com": "aws.bedrock",
    "anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "mistral.ai": "mistral_ai",
    "groq.com": "groq",
    "deepseek.com": "deepseek",
}
"""The values of OpenTelemetry's ``gen_ai.provider.name``, by the end of the host's name."""


def read_api_key() -> str:
    """Return the OpenAI key from the environment; ``""`` if there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def find_address(base_url: str | None) -> str | None:
    """Return the address: *base_url* or a variable's; ``None`` for the SDK's default."""
    values = (os.environ.get(name, "").strip() for name in (ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE))
    return base_url or next(filter(None, values), None)


def hash_address_and_key(base_url: str | None) -> int:
    """Return a hash of the address and the key that new clients use."""
    # A hash, so that the key itself is stored nowhere else.
    return hash((find_address(base_url), read_api_key()))


def make_client(*, is_async: bool, address: str | None, **options: Any) -> Any:
    """Return a new client that follows no redirects, which could send texts to another host."""
    import openai

    kind: Any = openai.AsyncOpenAI if is_async else openai.OpenAI
    # A user's own server may need no key, but the SDK's client requires one.
    return kind(
        api_key=read_api_key() or "none",
        base_url=address,
        http_client=_make_connections(is_async=is_async, follow_redirects=False),
        **options,
    )


def _make_connections(*, is_async: bool, **options: Any) -> Any:
    import openai

    kind: Any = openai.DefaultAsyncHttpxClient if is_async else openai.DefaultHttpxClient
    return kind(**options)


def is_client(candidate: Any) -> bool:
    """Return whether *candidate* is an ``openai`` client."""
    completions = getattr(getattr(candidate, "chat", None), "completions", None)
    return hasattr(completions, "create") and not isinstance(candidate, type)


def is_async_client(client: Any) -> bool:
    """Return whether *client* is an instance of a class whose name begins with ``Async``."""
    # A check by class would import the SDK, and would miss wrappers and test doubles.
    return any(ancestor.__name__.startswith("Async") for ancestor in type(client).__mro__)


def _has_default_connections(client: Any) -> bool:
    """Return whether *client* is a plain SDK client to which the user passed no HTTP client."""
    vendor = sys.modules.get("openai")
    # `type`, not `isinstance`: a double or a proxy may pretend to be an instance of the class.
    if vendor is None or not issubclass(type(client), (vendor.OpenAI, vendor.AsyncOpenAI)):
        return False
    # Tracing libraries replace the method `create` of one client. A copy would not be traced.
    is_replaced = "create" in vars(client.chat.completions)
    # The SDK then uses a class of its own. Without this name, the client is used as it is.
    http_class = type(getattr(client, "_client", None))
    return not is_replaced and http_class.__name__.endswith("HttpxClientWrapper")


def _copy_with_own_connections(client: Any) -> Any:
    return client.with_options(http_client=_make_connections(is_async=is_async_client(client)))


def read_host(address: str) -> str:
    """Return the host of *address*, without path, user or password."""
    server = read_host_and_port(address)
    return server[0] if server else "an unknown host"


def read_host_and_port(address: str) -> tuple[str, int] | None:
    """Return the host and port of *address*; ``None`` if either is missing."""
    try:
        parsed = urlsplit(address)
        host = parsed.hostname
        port = parsed.port or _PORTS.get(parsed.scheme)
    except ValueError:
        return None
    return (host, port) if host and port else None


def find_provider(host: str) -> str:
    """Return the OpenTelemetry name of the provider at *host*; ``openai`` if *host* is unknown."""
    ends = (end for end in _PROVIDERS if f".{host}".endswith((f".{end}", f"-{end}")))
    return _PROVIDERS.get(next(ends, ""), "openai")


class Clients:
    """The clients of one service: the user's own, or clients that are made on first use.

    There is one async client per event loop, because a connection belongs to the loop that opened
    it: the user's async client is copied. A client made here is closed when its loop shuts down.
    The user's clients are never closed.
    """

    def __init__(self, client: Any, base_url: str | None) -> None:
        self._user_client = client
        self._base_url = base_url
        is_async = is_async_client(client)
        self.has_sync_client = client is None or not is_async
        """Whether there is a client for synchronous calls."""
        self.has_async_client = client is None or is_async
        """Whether there is a client for asynchronous calls."""
        self._made = MadeOnce[Any]()
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[None]]] = {}
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Give up the parent's connections after a fork."""
        leave_to_parent(self._by_loop, self._user_client)
        self._by_loop = {}
        if _has_default_connections(self._user_client):
            self._user_client = _copy_with_own_connections(self._user_client)

    @property
    def address(self) -> str:
        """The server's base URL; ``""`` if the user's client does not show it."""
        address: Any = getattr(self._user_client, "base_url", "")
        if self._user_client is None:
            address = find_address(self._base_url) or DEFAULT_ADDRESS
        return str(address).rstrip("/")

    def get_sync_client(self) -> Any:
        """Return the client for a synchronous call."""
        return self._user_client or self._made.get(partial(self._make_client, is_async=False))

    async def get_async_client(self) -> Any:
        """Return the client for a call in the running event loop.

        Raises `ModelError` if the user gave only a sync client, or if there is no API key.
        """
        if not self.has_async_client:
            raise ModelError("unavailable", "an asynchronous call needs openai.AsyncOpenAI()")
        # Only the user knows the proxies and certificates of an HTTP client that the user passed.
        if self._user_client is not None and not _has_default_connections(self._user_client):
            return self._user_client
        loop = asyncio.get_running_loop()
        client, _ = self._by_loop.get(loop, (None, None))
        if client is None:
            # In a thread, because the SDK and the certificates take a second to load.
            made = await run_in_thread(partial(self._make_client, is_async=True))
            kept = {known: pair for known, pair in self._by_loop.items() if not known.is_closed()}
            # Another task may have been faster.
            client, lifetime = kept.setdefault(loop, (made, _close_at_shutdown(made)))
            self._by_loop = kept
            if client is made:
                # Started here, so that this loop closes the generator, and with it the client.
                await anext(lifetime)
        return client

    def close(self) -> None:
        """Close the clients made here, each in its event loop. The next call makes new clients."""
        # An event loop closes a generator that nobody refers to any more.
        self._by_loop = {}
        self._made.close()

    async def aclose(self) -> None:
        """Close as `close` does, but wait until the running event loop's client is closed."""
        _, lifetime = self._by_loop.pop(asyncio.get_running_loop(), (None, None))
        if lifetime is not None:
            await lifetime.aclose()
        self.close()

    def _make_client(self, *, is_async: bool) -> Any:
        address = find_address(self._base_url)
        if self._user_client is None and not (address or read_api_key()):
            raise ModelError(
                "unauthorized",
                f"the key for the language model is missing: set {KEY_VARIABLE}, or llm.baseUrl for"
                " a server without keys",
            )
        with explain_client_errors(partial(ModelError, "unavailable")):
            if self._user_client is not None:
                return _copy_with_own_connections(self._user_client)
            # A retry would hide what a busy service says, and the breaker waits for it anyway.
            client = make_client(is_async=is_async, address=address, max_retries=0)
        # The SDK loads these when they are first used.
        _ = client.chat.completions, client.default_headers
        return client


async def _close_at_shutdown(client: Any) -> AsyncGenerator[None]:
    """Close *client* when the running event loop shuts down, or when this generator is freed."""
    try:
        yield
    finally:
        await client.close()
