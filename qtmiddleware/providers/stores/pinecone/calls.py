"""Calls to one index, each of which comes to an end."""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.pinecone.failures import as_store_error, status_of

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds one request may take by default, with the client's own retries."""
FAIL: Final = object()


def within(seconds: float, call: Callable[[], T], subject: str, doing: str) -> T:
    """What *call* returns; raises `StoreError` for what it raises and when it has not returned after *seconds*.

    The client's own timeout counts for one attempt of four, each followed by a pause of up to a minute and a half. A
    call that is late goes on in a daemon thread, where nobody waits for it.
    """
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=copy_context().run, args=(work,), name="qtmiddleware-pinecone", daemon=True).start()
    try:
        value, error = done.get(timeout=seconds)
    except queue.Empty:
        raise StoreError(
            f"{subject} could not be {doing}: Pinecone did not answer within {seconds:g} seconds; try again later"
        ) from TimeoutError()
    if error is None:
        return value  # type: ignore[no-any-return]
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, StoreError):
        raise error
    raise as_store_error(error, subject, doing) from error


class Calls:
    """The methods of one *index*, called one at a time or by several threads; *opened* is closed with it."""

    def __init__(self, index: Any, *, seconds: float, opened: ExitStack | None = None) -> None:
        if inspect.iscoroutinefunction(getattr(type(index), "query", None)):
            raise StoreError(
                "an async Pinecone index cannot serve a store: give the one of pinecone.Pinecone().Index()"
            )
        self._index = index
        self._seconds = seconds
        self._opened = opened
        self._closed = False
        self.host = _host_of(index)
        self.subject = f"the Pinecone index {self.host}" if self.host else "the Pinecone index"

    def __call__(self, method: str, doing: str, *, missing: Any = FAIL, **arguments: Any) -> Any:
        """What *method* of the index returns; *missing* where Pinecone says that there is no such namespace."""
        if self._closed:
            raise StoreError(f"{self.subject} could not be {doing}: the store is closed")
        call = getattr(self._index, method, None)
        if call is None:
            raise StoreError(
                'the pinecone client that is installed is too old for this; run: pip install "pinecone>=6"'
            )
        try:
            return within(self._seconds, partial(call, **arguments), self.subject, doing)
        except StoreError as error:
            if missing is not FAIL and error.__cause__ is not None and status_of(error.__cause__) == 404:
                return missing
            raise

    def close(self) -> None:
        """Close what was opened for this; an index that was given stays open."""
        self._closed = True
        if self._opened is not None:
            self._opened.close()


def _host_of(index: Any) -> str:
    """The host of *index*, which older clients keep in its configuration."""
    found = getattr(index, "host", None) or getattr(getattr(index, "config", None), "host", None)
    return found.partition("://")[2].rstrip("/") or found if isinstance(found, str) else ""
