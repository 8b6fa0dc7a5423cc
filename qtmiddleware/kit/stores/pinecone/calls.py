"""Call Pinecone with a timeout, and convert failures into `StoreError`."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.errors import StoreError
from qtmiddleware.retrieval.running_call import record_read_units
from qtmiddleware.runtime.forking import leave_to_parent, make_lock, register_fork_reset

_ADVICE: Final = {
    400: "rejected the request; the cause of this error has the details",
    401: "rejected the key; check PINECONE_API_KEY",
    402: "requires payment; check the project's plan",
    403: (
        "does not allow this to the key, or a quota is used up; check the rights of"
        " PINECONE_API_KEY and the plan"
    ),
    404: "knows no such index; check store.index and store.host",
    408: "did not answer in time; try again later",
    413: "says the request is too large",
    429: "accepts no more requests for now (rate limit or quota); try again later",
}


def find_http_status(error: BaseException) -> int | None:
    """Return the HTTP status of *error*; ``None`` if *error* has no HTTP status."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _describe_failure(error: Exception) -> str:
    """Describe *error*, an exception from Pinecone's client, and advise the user what to do.

    Pinecone's own message is left out, because it may quote the request.
    """
    from pinecone.errors import ResponseParsingError

    status = find_http_status(error)
    if status is not None:
        advice = _ADVICE.get(status) or (
            "is not available; try again later" if status >= 500 else _ADVICE[400]
        )
        return f"Pinecone {advice} (HTTP {status})"
    kind = type(error).__name__
    if isinstance(error, TimeoutError):
        return f"Pinecone did not answer in time; try again later ({kind})"
    if isinstance(error, ResponseParsingError | AttributeError):
        return f"the response is not from Pinecone or cannot be read ({kind})"
    if isinstance(error, ValueError | TypeError):
        return (
            f"Pinecone's client rejected the request ({kind}); the cause of this error has the"
            " details"
        )
    return f"Pinecone cannot be reached; check the network, store.index and store.host ({kind})"


T = TypeVar("T")

TIMEOUT_SECONDS: Final = 60.0
"""The default timeout of one request in seconds, including the client's own retries."""


def call_with_timeout(
    timeout_seconds: float, send_request: Callable[[], T], subject: str, failed_action: str
) -> T:
    """Call *send_request* in a daemon thread, and return its result.

    Raises `StoreError` if *send_request* raises an exception or takes longer than
    *timeout_seconds*. After a timeout, the request continues in its thread, but its result is
    dropped.

    The error message begins with *subject* and *failed_action*, such as ``the Pinecone index`` and
    ``opened``.
    """
    # The timeout of Pinecone's client is not enough: it limits each of four attempts, with pauses
    # of up to 90 seconds between them.
    done: Future[T] = Future()

    def perform_call() -> None:
        try:
            done.set_result(send_request())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(
        target=copy_context().run, args=(perform_call,), name="qtmiddleware-pinecone", daemon=True
    ).start()
    try:
        return done.result(timeout=timeout_seconds)
    except StoreError:
        raise
    except Exception as error:
        timeout_message = (
            f"Pinecone did not answer within {timeout_seconds:g} seconds; try again later"
        )
        raise StoreError(
            f"{subject} could not be {failed_action}:"
            f" {_describe_failure(error) if done.done() else timeout_message}"
        ) from error


class Calls:
    """Calls the methods of a Pinecone index, each with a timeout. Thread-safe.

    Attributes:
        host: the index's host; empty if unknown.
        subject: a description of the index for error messages.

    Args:
        index: an index of the ``pinecone`` client.
        timeout_seconds: the timeout of one call, in seconds.
        resources: the client and the index that `close` closes, if any.
        reopen: opens the index again in a forked process, and adds what to close to a stack.
    """

    def __init__(
        self,
        index: Any,
        *,
        timeout_seconds: float,
        resources: ExitStack | None = None,
        reopen: Callable[[ExitStack], Any] | None = None,
    ) -> None:
        # An async index has the same methods, but they return coroutines.
        if inspect.iscoroutinefunction(getattr(type(index), "query", None)):
            raise StoreError(
                "the Pinecone index must not be async; pass the one from"
                " pinecone.Pinecone().Index()"
            )
        self._index = index
        self._timeout_seconds = timeout_seconds
        self._resources = resources
        self._reopen = reopen
        self._lock = make_lock()
        self._closed = False
        self.host = _find_host(index)
        self.subject = f"the Pinecone index {self.host}" if self.host else "the Pinecone index"
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Leave the connections that this package opened to the parent process after a fork."""
        if self._reopen is not None:
            leave_to_parent(self._index, self._resources)
            self._index, self._resources = None, ExitStack()

    def __call__(
        self,
        method_name: str,
        failed_action: str,
        *,
        may_be_missing: bool = False,
        **arguments: Any,
    ) -> Any:
        """Call the index's method *method_name* with *arguments*, and return the result.

        Raises `StoreError` if the call fails. If *may_be_missing* is true, returns ``None`` instead
        when Pinecone answers that the namespace does not exist. *failed_action* is the action that
        the error message names, such as ``written to``.
        """
        if self._closed:
            raise StoreError(f"{self.subject} could not be {failed_action}: the store is closed")
        with self._lock:
            if self._index is None and self._reopen is not None and self._resources is not None:
                self._index = self._reopen(self._resources)
        call = getattr(self._index, method_name)
        try:
            answer = call_with_timeout(
                self._timeout_seconds, partial(call, **arguments), self.subject, failed_action
            )
        except StoreError as error:
            if (
                may_be_missing
                and error.__cause__ is not None
                and find_http_status(error.__cause__) == 404
            ):
                return None
            raise
        record_read_units(answer)
        return answer

    def close(self) -> None:
        """Close the client and the index, if this package opened them."""
        self._closed = True
        if self._resources is not None:
            self._resources.close()


def _find_host(index: Any) -> str:
    """Return the host of *index*; ``""`` if the host is unknown."""
    host = getattr(index, "host", None)
    return host.partition("://")[2].rstrip("/") or host if isinstance(host, str) else ""
