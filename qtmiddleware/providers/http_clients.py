"""The HTTP clients under our own clients of the OpenAI SDK: made as it makes its own, one TLS context a process.

The body of an error, which the SDK reads to its end before anybody hears of the error, is given an end by all of them.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final

from qtmiddleware.types import Deadline

MOST_BYTES: Final = 1 << 16
"""Most bytes that are kept of an error's body: what is wrong is said in a few hundred."""

_DEADLINE: Final = "qtmiddleware.deadline"
_context: tuple[tuple[Any, ...], ssl.SSLContext] | None = None


def make_http_client(*, is_async: bool, **options: Any) -> Any:
    """An HTTP client with the SDK's own defaults and *options*, bounded by `bound_error_bodies`.

    Proxies and authorities are those of the environment, as the SDK's are. Redirects are not followed unless *options*
    say so: one could send prompts and texts anywhere.
    """
    import openai

    kind: Any = openai.DefaultAsyncHttpxClient if is_async else openai.DefaultHttpxClient
    http = kind(**{"verify": tls_context(), "follow_redirects": False, **options})
    bound_error_bodies(http)
    return http


def tls_context() -> ssl.SSLContext:
    """The context that OpenAI's SDK makes for each client, made once: to read all authorities takes 20 ms or more.

    Made anew in a forked process, where the environment names other authorities, and where gevent has put a context
    of its own in place.
    """
    global _context
    key = os.getpid(), os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"), ssl.SSLContext
    if (kept := _context) is None or kept[0] != key:
        import openai

        # `httpx`, or `httpx2` which came after it.
        library = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
        kept = _context = key, library.create_ssl_context()
    return kept[1]


def bound_error_bodies(http: Any) -> None:
    """Let the client *http* of `httpx` keep at most `MOST_BYTES` of an error's body, and read on until its timeout.

    The timeout of a request for one read (``read``) is taken for all of it, from when it is sent. A body that is larger
    ends there, so that status and headers are told all the same; one that takes longer raises `TimeoutError`.
    """
    hooks = http.event_hooks
    begin, bound = (_abegin, _abound) if hasattr(http, "aclose") else (_begin, _bound)
    # The first of all: another one may read the body.
    http.event_hooks = {"request": [begin, *hooks["request"]], "response": [bound, *hooks["response"]]}


def with_bounded_error_bodies(http: Any) -> Any:
    """*http* with `bound_error_bodies`, sharing its connections; it stays as it is, and so does one we cannot copy."""
    kind: Any = type(http)
    if kind.__name__.endswith("HttpxClientWrapper"):
        # The vendor's closes its connections when it is garbage, and they are not the copy's.
        kind = kind.__base__
    if hasattr(kind, "__del__"):
        return http
    twin = kind.__new__(kind)
    vars(twin).update(vars(http))
    bound_error_bodies(twin)
    return twin


def _begin(request: Any) -> None:
    seconds = request.extensions.get("timeout", {}).get("read")
    request.extensions[_DEADLINE] = Deadline() if seconds is None else Deadline.after(seconds)


async def _abegin(request: Any) -> None:
    _begin(request)


def _bound(response: Any) -> None:
    if not response.is_success:
        response.iter_bytes = partial(_read, response, response.iter_bytes)


async def _abound(response: Any) -> None:
    if not response.is_success:
        response.aiter_bytes = partial(_aread, response, response.aiter_bytes)


def _read(response: Any, iter_bytes: Callable[..., Iterator[bytes]], *size: Any) -> Iterator[bytes]:
    left = MOST_BYTES
    try:
        for chunk in iter_bytes(*size):
            yield chunk[:left]
            left = _left(response, left - len(chunk))
            if left <= 0:
                break
    finally:
        response.close()


async def _aread(response: Any, aiter_bytes: Callable[..., AsyncIterator[bytes]], *size: Any) -> AsyncIterator[bytes]:
    left = MOST_BYTES
    try:
        async for chunk in aiter_bytes(*size):
            yield chunk[:left]
            left = _left(response, left - len(chunk))
            if left <= 0:
                break
    finally:
        await response.aclose()


def _left(response: Any, left: int) -> int:
    """*left*, the bytes that may still be read; raises `TimeoutError` where the time for them is over."""
    if left > 0 and response.request.extensions[_DEADLINE].passed:
        raise TimeoutError
    return left
