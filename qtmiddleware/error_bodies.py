"""An end to the bodies of errors, which a vendor's client reads to theirs before anybody hears of the error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final

from qtmiddleware.deadline import Deadline

MOST_BYTES: Final = 1 << 16
"""Most bytes that are kept of an error's body: what is wrong is said in a few hundred."""

_DEADLINE: Final = "qtmiddleware.deadline"


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
