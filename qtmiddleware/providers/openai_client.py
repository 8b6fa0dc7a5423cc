"""OpenAI's client library, for models and embedders alike: clients of our own, those a user gave, and their errors.

The clients are made as the SDK makes its own, with one TLS context a process. The body of an error,
which the SDK reads to its end before anybody hears of the error, is given an end by all of them.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
from collections.abc import Callable, Mapping
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
"""Read by the SDK itself, where there is no other address."""
DEFAULT_ADDRESS: Final = "https://api.openai.com/v1"
"""The SDK's own, where nothing names another one."""
NO_KEY: Final = "none"
"""Sent to a server of the user's own where no key is set: such servers ask for none, but the client insists on one."""
MOST_ERROR_BYTES: Final = 1 << 16
"""Most bytes that are kept of an error's body: what is wrong is said in a few hundred."""

# Two generations of HTTP libraries may stand behind a client, so their classes are told by name and
# none is imported.
TIMEOUTS: Final = frozenset({"APITimeoutError", "TimeoutException", "TimeoutError"})
_IDENTIFIER: Final = re.compile(r"[a-z][a-z_]{2,39}")

_DEADLINE: Final = "qtmiddleware.deadline"


def read_key() -> str:
    """The key in the environment, ``""`` where there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def make_client(*, is_async: bool = False, address: str | None, **options: Any) -> Any:
    """A client of our own, with the key of the environment, for *address* or the SDK's default; *options* are its."""
    import openai

    http = make_http_client(is_async=is_async)
    kind: Any = openai.AsyncOpenAI if is_async else openai.OpenAI
    client = kind(api_key=read_key() or NO_KEY, base_url=address, http_client=http, **options)
    if not is_async:
        # As the vendor's own is: whoever forgets to close it leaves no connection. Async ones end
        # with their loop.
        finalize(client, http.close).atexit = False
    return client


class ClientPerProcess:
    """A sync client of our own, made once a process, as sockets do not survive a fork; thread-safe."""

    def __init__(self) -> None:
        # `setdefault` is atomic; a lock could be held by another thread at the moment of a fork.
        # The client of a parent process stays in its place unused, for to close it here would be to
        # wait for its locks.
        self._by_process: dict[int, Any] = {}

    def get(self, make: Callable[[], Any]) -> Any:
        """The client of this process, made by *make* the first time."""
        process = os.getpid()
        client = self._by_process.get(process)
        # Of two that are made at once one is dropped, and closed with that.
        return self._by_process.setdefault(process, make()) if client is None else client

    def close(self) -> None:
        """Close the client of this process; the next call makes another."""
        client = self._by_process.pop(os.getpid(), None)
        if client is not None:
            client.close()


def read_host(address: str) -> str:
    """The host of *address*, without path, user or password."""
    try:
        return urlsplit(address).hostname or (
            "an address without a host" if address else "the default address"
        )
    except ValueError:
        return "an address that cannot be read"


_PORTS: Final = {"http": 80, "https": 443}


def read_server(address: str) -> tuple[str, int] | None:
    """Return the host and port of *address*; ``None`` if it names none."""
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


def find_provider(host: str, otherwise: str = "openai") -> str:
    """Who serves the models at *host*, as OpenTelemetry's conventions (``gen_ai.provider.name``) call them."""
    return next((name for ends, name in _PROVIDERS if ends.search(host)), otherwise)


def is_async_client(client: Any) -> bool:
    """Whether *client* is an asynchronous one, told by the names of its classes."""
    return any(ancestor.__name__.startswith("Async") for ancestor in type(client).__mro__)


def is_vendor_client(client: Any, resource: str) -> bool:
    """Whether *client* is of the vendor's own classes, so that it can be copied and its answers read piece by piece.

    A wrapper, a double or a client whose ``create`` of *resource* (``"embeddings"``) was replaced
    by a tracing library is none: it is called in the plain way, so that what it adds is not
    bypassed.
    """
    vendor = sys.modules.get("openai")
    # By its real type: a double or a proxy may answer `isinstance` as the class it stands for.
    if vendor is None or not issubclass(type(client), (vendor.OpenAI, vendor.AsyncOpenAI)):
        return False
    return "create" not in vars(attrgetter(resource)(client))


_VENDORS: Final = ("openai.", "anthropic.", "google.genai.")


def copy_without_retries(client: Any) -> Any:
    """A copy of the vendor's *client* that does not retry and bounds the bodies of errors, sharing its connections."""
    return client.with_options(
        max_retries=0, http_client=copy_with_bounded_error_bodies(client._client)
    )


def make_http_client(*, is_async: bool, **options: Any) -> Any:
    """An HTTP client with the SDK's own defaults and *options*, bounded by `bound_error_bodies`.

    Proxies and authorities are those of the environment, as the SDK's are. Redirects are not
    followed unless *options* say so: one could send prompts and texts anywhere.
    """
    import openai

    kind: Any = openai.DefaultAsyncHttpxClient if is_async else openai.DefaultHttpxClient
    # Another one in a forked process, where the environment names other authorities, and where
    # gevent has put a context of its own in place.
    authorities = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    context = _make_tls_context(os.getpid(), authorities, ssl.SSLContext)
    http = kind(**{"verify": context, "follow_redirects": False, **options})
    bound_error_bodies(http)
    return http


@lru_cache(maxsize=1)
def _make_tls_context(*_: Any) -> ssl.SSLContext:
    """The context that OpenAI's SDK makes for each client, made once: to read all authorities takes 20 ms or more."""
    import openai

    # `httpx`, or `httpx2` which came after it.
    library = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
    context: ssl.SSLContext = library.create_ssl_context()
    return context


def bound_error_bodies(http: Any) -> None:
    """Let *http*, a client of `httpx`, keep at most `MOST_ERROR_BYTES` of an error's body and read until its timeout.

    The timeout of a request for one read (``read``) is taken for all of it, from when it is sent. A
    body that is larger or takes longer ends there, so that status and headers are told all the
    same.
    """
    hooks = http.event_hooks
    begin, bound = (
        (_astart_deadline, _abound_body)
        if hasattr(http, "aclose")
        else (_start_deadline, _bound_body)
    )
    # The first of all: another one may read the body.
    http.event_hooks = {
        "request": [begin, *hooks["request"]],
        "response": [bound, *hooks["response"]],
    }


def copy_with_bounded_error_bodies(http: Any) -> Any:
    """*http* with `bound_error_bodies`, sharing its connections; it stays as it is, and so does one we cannot copy."""
    kind: Any = type(http)
    while "__del__" in vars(kind) and kind.__module__.startswith(_VENDORS):
        # The vendor's closes its connections when it is garbage, and they are not the copy's.
        kind = kind.__base__
    if hasattr(kind, "__del__"):
        return http
    twin = kind.__new__(kind)
    vars(twin).update(vars(http))
    bound_error_bodies(twin)
    return twin


def _start_deadline(request: Any) -> None:
    seconds = request.extensions.get("timeout", {}).get("read")
    request.extensions[_DEADLINE] = Deadline() if seconds is None else Deadline.after(seconds)


async def _astart_deadline(request: Any) -> None:
    _start_deadline(request)


def _bound_body(response: Any) -> None:
    if not response.is_success:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if _is_enough(body, response):
                break
        response.close()
        # What `read` gives from here on.
        response._content = bytes(body[:MOST_ERROR_BYTES])


async def _abound_body(response: Any) -> None:
    if not response.is_success:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if _is_enough(body, response):
                break
        await response.aclose()
        response._content = bytes(body[:MOST_ERROR_BYTES])


def _is_enough(body: bytearray, response: Any) -> bool:
    return len(body) >= MOST_ERROR_BYTES or bool(response.request.extensions[_DEADLINE].passed)


def status_of(error: Exception) -> int | None:
    """The HTTP status *error* stands for, ``None`` where there was no answer."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def is_any_of(error: Exception, names: frozenset[str]) -> bool:
    """Whether *error* is of one of the classes of these *names*."""
    return any(ancestor.__name__ in names for ancestor in type(error).__mro__)


def read_body_field(error: Exception, name: str) -> str:
    """The text *name* in the body of *error*, ``""`` where there is none."""
    body: Any = getattr(error, "body", None)
    value = body.get(name) if isinstance(body, Mapping) else None
    return value if isinstance(value, str) else ""


def read_identifier(error: Exception, name: str) -> str:
    """`read_body_field` where that is a plain identifier; services like to quote keys and texts in all else."""
    value = read_body_field(error, name)
    return value if _IDENTIFIER.fullmatch(value) else ""


def retry_after(error: Exception) -> float | None:
    """For how many seconds the service asks to be left alone: a number or a date in its headers (RFC 9110, 10.2.3)."""
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
        "ResponseValidationError",
        "ValidationError",
    }
    | {"UnknownApiResponseError"}
)

_ADVICE: Final = {
    "timeout": "did not answer in time; raise {timeout} if it usually takes longer",
    "unauthorized": "rejected the key; check {key} and its permissions",
    "rate_limited": "accepts no more requests for now (rate limit or quota)",
    "refused": "withheld the answer by its content filter",
    "too_long": "says the request is too long for the model",
    "unparsable": "sent a response that cannot be read",
}


def read_client_error(
    error: Exception,
    where: str,
    *,
    address: str = "llm.baseUrl",
    timeout: str = "limits.llmTimeoutMs (for answers, answer.timeoutMs)",
    key: str = KEY_VARIABLE,
) -> ModelError:
    """The `ModelError` for *error*, raised by a client while asking *where*.

    Its message names the kind of failure, what to look at (*address*, *timeout* and the variable
    *key*) and, for a rejected request, the provider's own error code where that is a plain
    identifier; never a key, a query or a reply, which providers like to quote in theirs.
    """
    if type(error.__cause__).__name__ == "ConnectTimeout":
        return ModelError(
            "timeout",
            f"{where} cannot be reached (ConnectTimeout); check {address} and the network",
        )
    if isinstance(error, UnicodeEncodeError):
        # Headers must be ASCII, and the key is the only one that is not ours.
        return ModelError(
            "unauthorized",
            f"the key for {where} holds characters that are not allowed in a key; check {key}",
        )
    status = status_of(error)
    reason = _choose_error_reason(error, status)
    if status == 407 or type(error.__cause__).__name__ == "ProxyError":
        return ModelError(reason, f"the proxy blocks {where}; check HTTPS_PROXY")
    seen = type(error).__name__ if status is None else f"HTTP {status}"
    if reason == "rejected":
        seen += "".join(
            f", {name} {said}"
            for name in ("code", "param")
            if (said := read_identifier(error, name))
        )
        return ModelError(
            reason, f"{where} rejected the request ({seen}); check the model and the config"
        )
    wait = limit_pause(retry_after(error))
    if reason != "unavailable":
        return ModelError(
            reason,
            f"{where} {_ADVICE[reason].format(timeout=timeout, key=key)} ({seen})",
            retry_after=wait,
        )
    said = f"{where} is not available ({seen}); check {address} and the network"
    if status is not None and status < 400:
        said = (
            f"{where} redirects to another address ({seen}), and redirects are not followed; check"
            f" {address}"
        )
    return ModelError(reason, said, retry_after=wait)


def choose_reason(status: int) -> str:
    """The reason of a `ModelError` for the HTTP *status* of a service that refused."""
    return _STATUS.get(status, "rejected" if 400 <= status < 500 else "unavailable")


def _choose_error_reason(error: Exception, status: int | None) -> str:
    if is_any_of(error, TIMEOUTS):
        return "timeout"
    if is_any_of(error, _UNREADABLE):
        return "unparsable"
    reason = "unavailable" if status is None else choose_reason(status)
    return _CODE.get(read_body_field(error, "code"), reason) if reason == "rejected" else reason
