"""Make clients of the ``openai`` package, and convert their errors to `ModelError`.

These clients differ from those that the SDK makes: they share one TLS context per process, and they
limit the size of error bodies. The SDK reads error bodies of any size.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from operator import attrgetter
from time import time
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import finalize

from qtmiddleware.errors import ModelError, limit_pause
from qtmiddleware.types import Deadline

KEY_VARIABLE: Final = "OPENAI_API_KEY"
SDK_ADDRESS_VARIABLE: Final = "OPENAI_BASE_URL"
"""The environment variable that the SDK reads if no other address is set."""
DEFAULT_ADDRESS: Final = "https://api.openai.com/v1"
"""The SDK's default address."""
NO_KEY: Final = "none"
"""The placeholder that is sent if no key is set.

A user's own server may need no key, but the SDK's client requires one.
"""
MOST_ERROR_BYTES: Final = 1 << 16
"""The number of bytes to keep of an error's body. The first few hundred bytes name the cause."""

# The classes are recognised by name, so that no HTTP library needs to be imported.
TIMEOUTS: Final = frozenset({"APITimeoutError", "TimeoutException", "TimeoutError"})
_IDENTIFIER: Final = re.compile(r"[a-z][a-z_]{2,39}")

_DEADLINE: Final = "qtmiddleware.deadline"


def read_api_key() -> str:
    """Return the OpenAI key from the environment; ``""`` if there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def make_client(*, is_async: bool = False, address: str | None, **options: Any) -> Any:
    """Return a new ``openai`` client with the key from the environment.

    Args:
        is_async: Whether the client is asynchronous.
        address: The base URL; ``None`` uses the SDK's default.
        **options: More arguments for the client.
    """
    import openai

    http = make_http_client(is_async=is_async)
    kind: Any = openai.AsyncOpenAI if is_async else openai.OpenAI
    client = kind(api_key=read_api_key() or NO_KEY, base_url=address, http_client=http, **options)
    if not is_async:
        # Like the SDK's own HTTP client, this one is closed with its client even if nobody closes
        # it. Asynchronous clients end with their loop.
        finalize(client, http.close).atexit = False
    return client


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


_PORTS: Final = {"http": 80, "https": 443}


def read_host_and_port(address: str) -> tuple[str, int] | None:
    """Return the host and port of *address*; ``None`` if either is missing."""
    try:
        parsed = urlsplit(address)
        host, port = parsed.hostname, parsed.port or _PORTS.get(parsed.scheme)
    except ValueError:
        return None
    return (host, port) if host and port else None


_PROVIDERS: Final = tuple(
    (re.compile(rf"(^|[.-])({host})$"), name)
    for host, name in (
        (r"openai\.azure\.com", "azure.ai.openai"),
        (r"ai\.azure\.com", "azure.ai.inference"),
        (r"bedrock[\w.-]*\.amazonaws\.com", "aws.bedrock"),
        (r"anthropic\.com", "anthropic"),
        (r"aiplatform\.googleapis\.com", "gcp.vertex_ai"),
        (r"generativelanguage\.googleapis\.com", "gcp.gemini"),
        (r"mistral\.ai", "mistral_ai"),
        (r"groq\.com", "groq"),
        (r"deepseek\.com", "deepseek"),
        (r"cohere\.(?:com|ai)", "cohere"),
        (r"perplexity\.ai", "perplexity"),
        (r"x\.ai", "x_ai"),
    )
)


def find_provider(host: str) -> str:
    """Return the OpenTelemetry name of the provider at *host*; ``openai`` if *host* is unknown.

    The names are values of ``gen_ai.provider.name``.
    """
    return next((name for ends, name in _PROVIDERS if ends.search(host)), "openai")


def is_async_client(client: Any) -> bool:
    """Return whether *client* is an instance of a class whose name begins with ``Async``."""
    # A check by class would import the SDK, and would miss wrappers and test doubles.
    return any(ancestor.__name__.startswith("Async") for ancestor in type(client).__mro__)


def is_vendor_client(client: Any, resource: str) -> bool:
    """Return whether *client* is an unchanged client of the SDK.

    Only such a client can be copied and can stream. Returns ``False`` for wrappers and test
    doubles, and if a tracing library has replaced the ``create`` method of *resource*, such as
    ``"embeddings"``. A copy would lose the tracing.
    """
    vendor = sys.modules.get("openai")
    # `type`, not `isinstance`: a double or a proxy may pretend to be an instance of the class.
    if vendor is None or not issubclass(type(client), (vendor.OpenAI, vendor.AsyncOpenAI)):
        return False
    return "create" not in vars(attrgetter(resource)(client))


def copy_without_retries(client: Any) -> Any:
    """Return a copy of *client* without retries and with limited error bodies.

    The copy shares the connections of *client*.
    """
    return client.with_options(
        max_retries=0, http_client=copy_with_limited_error_bodies(client._client)
    )


def make_http_client(*, is_async: bool, **options: Any) -> Any:
    """Return an HTTP client with the SDK's defaults, limited error bodies and *options*.

    Proxies and certificate authorities come from the environment, as in the SDK. By default, the
    client does not follow redirects, because they could send prompts and texts to another host.
    """
    import openai

    kind: Any = openai.DefaultAsyncHttpxClient if is_async else openai.DefaultHttpxClient
    # The arguments are a cache key: a new context is made if the environment names other
    # authorities.
    context = _make_tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    http = kind(**{"verify": context, "follow_redirects": False, **options})
    limit_error_bodies(http)
    return http


@lru_cache(maxsize=1)
def _make_tls_context(*_: Any) -> ssl.SSLContext:
    """Return the TLS context that all clients share. The first call makes the context.

    Without the cache, each client would read all certificate authorities, which takes 20 ms or
    more. The arguments serve only as the cache key.
    """
    import httpx2

    return httpx2.create_ssl_context()


def limit_error_bodies(http_client: Any) -> None:
    """Limit the size of the error bodies that *http_client* reads, and the time to read them.

    *http_client* is an `httpx2` client. The client keeps at most `MOST_ERROR_BYTES` bytes of an
    error body, and stops reading the body when the request's ``read`` timeout has passed since the
    start of the request. The rest of the body is dropped. Status and headers are still reported.
    """
    hooks = http_client.event_hooks
    begin, bound = (
        (_astart_deadline, _alimit_error_body)
        if hasattr(http_client, "aclose")
        else (_start_deadline, _limit_error_body)
    )
    # These hooks come first, because another hook may read the body.
    http_client.event_hooks = {
        "request": [begin, *hooks["request"]],
        "response": [bound, *hooks["response"]],
    }


def copy_with_limited_error_bodies(http_client: Any) -> Any:
    """Return a copy of *http_client*, an `httpx2` client, with limited error bodies.

    The copy shares the connections of *http_client*. `limit_error_bodies` describes the limits. If
    *http_client* cannot be copied, it is returned without limits.
    """
    class_: Any = type(http_client)
    while "__del__" in vars(class_) and class_.__module__.startswith("openai."):
        # The SDK's class closes its connections when it is garbage-collected, but the copy does
        # not own them. So the copy gets the parent class, which has no such destructor.
        class_ = class_.__base__
    # A user's own class may close its connections in the same way, so it is not copied.
    if hasattr(class_, "__del__"):
        return http_client
    http_copy = class_.__new__(class_)
    vars(http_copy).update(vars(http_client))
    limit_error_bodies(http_copy)
    return http_copy


def _start_deadline(request: Any) -> None:
    seconds = request.extensions.get("timeout", {}).get("read")
    request.extensions[_DEADLINE] = Deadline() if seconds is None else Deadline.after(seconds)


async def _astart_deadline(request: Any) -> None:
    _start_deadline(request)


def _limit_error_body(response: Any) -> None:
    if not response.is_success:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if _should_stop_reading(body, response):
                break
        response.close()
        # From now on, `response.read()` returns these bytes instead of reading the connection.
        response._content = bytes(body[:MOST_ERROR_BYTES])


async def _alimit_error_body(response: Any) -> None:
    if not response.is_success:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if _should_stop_reading(body, response):
                break
        await response.aclose()
        response._content = bytes(body[:MOST_ERROR_BYTES])


def _should_stop_reading(body: bytearray, response: Any) -> bool:
    return len(body) >= MOST_ERROR_BYTES or bool(response.request.extensions[_DEADLINE].passed)


def read_status(error: Exception) -> int | None:
    """Return the HTTP status of *error*; ``None`` if *error* has no status."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def has_class_name_in(error: Exception, class_names: frozenset[str]) -> bool:
    """Return whether *error* is an instance of a class whose name is in *class_names*."""
    return any(ancestor.__name__ in class_names for ancestor in type(error).__mro__)


def read_body_field(error: Exception, field_name: str) -> str:
    """Return the string in the field *field_name* of the error's body; ``""`` if there is none."""
    body: Any = getattr(error, "body", None)
    value = body.get(field_name) if isinstance(body, Mapping) else None
    return value if isinstance(value, str) else ""


def read_identifier(error: Exception, field_name: str) -> str:
    """Return the identifier in the field *field_name* of the error's body; ``""`` if there is none.

    An identifier has 3 to 40 lower-case letters or underscores, as in ``bad_value``. Any other text
    is dropped, because it may quote a key or a query.
    """
    value = read_body_field(error, field_name)
    return value if _IDENTIFIER.fullmatch(value) else ""


def read_retry_after(error: Exception) -> float | None:
    """Return how many seconds to wait, according to the error's ``Retry-After`` header.

    Returns ``None`` if there is no valid header. The header contains a number of seconds or a date
    (RFC 9110, section 10.2.3). The non-standard header ``retry-after-ms`` takes precedence.
    """
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            seconds = float(str(headers.get(name)).encode("ascii")) * unit
            if 0 <= seconds < float("inf"):
                return seconds
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(str(headers.get("retry-after"))).timestamp() - time())
    return None


_STATUS: Final = {
    401: "unauthorized",
    403: "unauthorized",
    407: "unauthorized",
    408: "timeout",
    413: "too_long",
    429: "rate_limited",
}
_CODE: Final = {
    "content_filter": "refused",
    "content_policy_violation": "refused",
    "context_length_exceeded": "too_long",
    "invalid_api_key": "unauthorized",
}
_UNREADABLE: Final = frozenset(
    {
        "DecodingError",
        "JSONDecodeError",
        "APIResponseValidationError",
        "ValidationError",
    }
)

_ADVICE: Final = {
    "timeout": "did not answer in time; raise {timeout} if it usually takes longer",
    "unauthorized": "rejected the key; check {key} and its permissions",
    "rate_limited": "accepts no more requests for now (rate limit or quota)",
    "refused": "withheld the answer by its content filter",
    "too_long": "says the request is too long for the model",
    "unparsable": "sent a response that cannot be read",
}


def convert_client_error(
    error: Exception,
    service: str,
    *,
    address: str = "llm.baseUrl",
    timeout: str = "limits.llmTimeoutMs (for answers, answer.timeoutMs)",
    key: str = KEY_VARIABLE,
) -> ModelError:
    """Return the `ModelError` for a client's *error*.

    The message says what failed and what to check. For a rejected request, the message includes the
    provider's error code if the code is an identifier. The message never contains a key, a query or
    a reply, although providers often quote them.

    Args:
        error: The exception that the client raised.
        service: The model's name and host, as the message shows them.
        address: The name of the option that sets the address.
        timeout: The names of the options that set the timeouts.
        key: The name of the environment variable with the API key.
    """
    if type(error.__cause__).__name__ == "ConnectTimeout":
        return ModelError(
            "timeout",
            f"{service} cannot be reached (ConnectTimeout); check {address} and the network",
        )
    if isinstance(error, UnicodeEncodeError):
        # Headers must be ASCII, and the key is the only header that this package does not write.
        return ModelError(
            "unauthorized",
            f"the key for {service} holds characters that are not allowed in a key; check {key}",
        )
    status = read_status(error)
    reason = _choose_error_reason(error, status)
    if status == 407 or type(error.__cause__).__name__ == "ProxyError":
        return ModelError(reason, f"the proxy blocks {service}; check HTTPS_PROXY")
    failure = type(error).__name__ if status is None else f"HTTP {status}"
    if reason == "rejected":
        failure += "".join(
            f", {name} {message}"
            for name in ("code", "param")
            if (message := read_identifier(error, name))
        )
        return ModelError(
            reason, f"{service} rejected the request ({failure}); check the model and the config"
        )
    wait = limit_pause(read_retry_after(error))
    if reason != "unavailable":
        return ModelError(
            reason,
            f"{service} {_ADVICE[reason].format(timeout=timeout, key=key)} ({failure})",
            retry_after=wait,
        )
    message = f"{service} is not available ({failure}); check {address} and the network"
    if status is not None and status < 400:
        message = (
            f"{service} redirects to another address ({failure}), and redirects are not followed;"
            f" check {address}"
        )
    return ModelError(reason, message, retry_after=wait)


def find_reason_for_status(status: int) -> str:
    """Return the `ModelError` reason for the HTTP *status* of an error."""
    return _STATUS.get(status, "rejected" if 400 <= status < 500 else "unavailable")


def _choose_error_reason(error: Exception, status: int | None) -> str:
    if has_class_name_in(error, TIMEOUTS):
        return "timeout"
    if has_class_name_in(error, _UNREADABLE):
        return "unparsable"
    reason = "unavailable" if status is None else find_reason_for_status(status)
    # Providers send 400 for many causes, so the code in the body tells them apart.
    return _CODE.get(read_body_field(error, "code"), reason) if reason == "rejected" else reason
