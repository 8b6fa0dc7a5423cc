"""Make clients of the ``openai`` package, and name the service that a client calls."""

from __future__ import annotations

import os
import sys
from typing import Any, Final
from urllib.parse import urlsplit

KEY_VARIABLE: Final = "OPENAI_API_KEY"
SDK_ADDRESS_VARIABLE: Final = "OPENAI_BASE_URL"
"""The environment variable that the SDK reads if no other address is set."""
DEFAULT_ADDRESS: Final = "https://api.openai.com/v1"
"""The SDK's default address."""

_PORTS: Final = {"http": 80, "https": 443}
_PROVIDERS: Final = {
    "openai.azure.com": "azure.ai.openai",
    "ai.azure.com": "azure.ai.inference",
    "amazonaws.com": "aws.bedrock",
    "anthropic.com": "anthropic",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "mistral.ai": "mistral_ai",
    "groq.com": "groq",
    "deepseek.com": "deepseek",
    "cohere.com": "cohere",
    "cohere.ai": "cohere",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}
"""The values of OpenTelemetry's ``gen_ai.provider.name``, by the end of the host's name."""


def read_api_key() -> str:
    """Return the OpenAI key from the environment; ``""`` if there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def make_client(*, is_async: bool, address: str | None, **options: Any) -> Any:
    """Return a new ``openai`` client with the key from the environment.

    The client does not follow redirects, because they could send texts to another host.

    Args:
        is_async: Whether the client is asynchronous.
        address: The base URL; ``None`` uses the SDK's default.
        **options: More arguments for the client.
    """
    import openai

    make_http: Any = openai.DefaultAsyncHttpxClient if is_async else openai.DefaultHttpxClient
    kind: Any = openai.AsyncOpenAI if is_async else openai.OpenAI
    # A user's own server may need no key, but the SDK's client requires one.
    return kind(
        api_key=read_api_key() or "none",
        base_url=address,
        http_client=make_http(follow_redirects=False),
        **options,
    )


def is_async_client(client: Any) -> bool:
    """Return whether *client* is an instance of a class whose name begins with ``Async``."""
    # A check by class would import the SDK, and would miss wrappers and test doubles.
    return any(ancestor.__name__.startswith("Async") for ancestor in type(client).__mro__)


def is_plain_client(client: Any) -> bool:
    """Return whether *client* is an SDK client whose calls nobody has replaced.

    Only such a client can be copied: tracing libraries replace the method ``create`` of one client,
    and a copy would not be traced.
    """
    vendor = sys.modules.get("openai")
    # `type`, not `isinstance`: a double or a proxy may pretend to be an instance of the class.
    if vendor is None or not issubclass(type(client), (vendor.OpenAI, vendor.AsyncOpenAI)):
        return False
    return "create" not in vars(client.chat.completions)


def has_default_connections(client: Any) -> bool:
    """Return whether *client* is a plain SDK client to which the user passed no HTTP client."""
    # The SDK then uses a class of its own. Without this name, the client is used as it is.
    http_class = type(getattr(client, "_client", None))
    return is_plain_client(client) and http_class.__name__.endswith("HttpxClientWrapper")


def copy_with_own_connections(client: Any) -> Any:
    """Return a copy of *client*, which has default connections, with connections of its own."""
    import openai

    if is_async_client(client):
        return client.with_options(http_client=openai.DefaultAsyncHttpxClient())
    return client.with_options(http_client=openai.DefaultHttpxClient())


def read_host(address: str) -> str:
    """Return the host of *address*, without path, user or password.

    If *address* has no host, returns a phrase for messages, such as "the default address".
    """
    try:
        return urlsplit(address).hostname or (
            "an address without a host" if address else "the default address"
        )
    except ValueError:
        return "an address that cannot be read"


def read_host_and_port(address: str) -> tuple[str, int] | None:
    """Return the host and port of *address*; ``None`` if either is missing."""
    try:
        parsed = urlsplit(address)
        host, port = parsed.hostname, parsed.port or _PORTS.get(parsed.scheme)
    except ValueError:
        return None
    return (host, port) if host and port else None


def find_provider(host: str) -> str:
    """Return the OpenTelemetry name of the provider at *host*; ``openai`` if *host* is unknown."""
    ends = ((f".{end}", f"-{end}") for end in _PROVIDERS)
    found = (
        name
        for end, name in zip(ends, _PROVIDERS.values(), strict=True)
        if f".{host}".endswith(end)
    )
    return next(found, "openai")
