"""What a call of a model raised, as a `ModelError`: errors of clients, and defects of a user's own function."""

from __future__ import annotations

from pathlib import Path
from traceback import StackSummary, extract_tb
from types import TracebackType
from typing import Any, Final
from weakref import finalize

from qtmiddleware.errors import ModelError
from qtmiddleware.providers.openai_client import (
    TIMEOUTS,
    field_of,
    identifier_of,
    is_any_of,
    retry_after,
    status_of,
)
from qtmiddleware.runtime.logs import get_logger

LONGEST_REST: Final = 600.0
"""The longest a service is believed, in seconds, when it says how long to leave it alone."""

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
_UNREADABLE: Final = frozenset({"DecodingError", "JSONDecodeError", "APIResponseValidationError"})

_ADVICE: Final = {
    "timeout": "did not answer in time; raise limits.llmTimeoutMs, for answers answer.timeoutMs, where that is usual",
    "unauthorized": "refused the key; check OPENAI_API_KEY",
    "rate_limited": "takes no more requests for now (rate limit or quota)",
    "refused": "withheld the answer by its content filter",
    "too_long": "says the request is too long for the model",
    "unparsable": "sent an answer that cannot be read",
}


def read_client_error(error: Exception, where: str) -> ModelError:
    """The `ModelError` for *error*, raised by a client while asking *where*.

    Its message names the kind of failure and, for a rejected request, the provider's own error code where that is a
    plain identifier; never a key, a query or a reply, which providers like to quote in theirs.
    """
    if type(error.__cause__).__name__ == "ConnectTimeout":
        return ModelError("timeout", f"{where} cannot be reached (ConnectTimeout); check llm.baseUrl and the network")
    if isinstance(error, UnicodeEncodeError):
        # Headers must be ASCII, and the key is the only one that is not ours.
        return ModelError("unauthorized", f"the key for {where} holds letters no key holds; check OPENAI_API_KEY")
    status = status_of(error)
    reason = _reason(error, status)
    if status == 407 or type(error.__cause__).__name__ == "ProxyError":
        return ModelError(reason, f"{where} is behind a proxy that lets nothing through; check HTTPS_PROXY")
    seen = type(error).__name__ if status is None else f"HTTP {status}"
    if reason == "rejected":
        seen += "".join(f", {name} {said}" for name in ("code", "param") if (said := identifier_of(error, name)))
        return ModelError(reason, f"{where} rejected the request ({seen}); check model and config")
    wait = retry_after(error)
    if wait is not None:
        wait = min(wait, LONGEST_REST)
    if reason != "unavailable":
        return ModelError(reason, f"{where} {_ADVICE[reason]} ({seen})", retry_after=wait)
    said = f"{where} is not available ({seen}); check llm.baseUrl and the network"
    if status is not None and status < 400:
        said = f"{where} redirects to another address ({seen}), which is not followed; check llm.baseUrl"
    return ModelError(reason, said, retry_after=wait)


def _reason(error: Exception, status: int | None) -> str:
    if status is None:
        if is_any_of(error, TIMEOUTS):
            return "timeout"
        return "unparsable" if is_any_of(error, _UNREADABLE) else "unavailable"
    if status in _STATUS:
        return _STATUS[status]
    if 400 <= status < 500:
        return _CODE.get(field_of(error, "code"), "rejected")
    return "unavailable" if status >= 300 else "unparsable"


_DEFECTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
# Bytes that are no text, and header values that are no ASCII, come from outside.
_OUTSIDE: Final = (UnicodeError, OSError)

_TRANSPORT: Final = frozenset(
    {"aiohttp", "anyio", "asyncio", "grpc", "h11", "h2", "http", "httpcore", "httpcore2", "httpx", "httpx2"}
    | {"requests", "socket", "ssl", "urllib", "urllib3"}
)
"""Libraries of connections."""
# What such a library raises where the other side, or another loop, took something away from it.
_TAKEN_AWAY: Final = (AttributeError, AssertionError, LookupError)

_MOST_FRAMES: Final = 100
_OURS: Final = str(Path(__file__).parents[2])

_log = get_logger("qtmiddleware")
_reported: dict[tuple[int, str], object] = {}


def find_defect(error: BaseException, label: str, fn: Any) -> ModelError | None:
    """The `ModelError` ("failed") for *error* of *fn*, which goes by *label*, where it is a defect in its code.

    It is one where Python itself raised it (`TypeError`, `KeyError`, ...) and not for a connection. The first of each
    type of each function is logged at ERROR with its stack, without local variables and without its message, which may
    quote the question; that is logged at DEBUG.
    """
    if not _is_defect(error):
        return None
    kind = type(error).__name__
    if _is_first(fn, kind):
        _log.error("%s raised %s: a bug in the function, logged once\n%s", label, kind, _format_stack(error, fn))
        _log.debug("%s failed", label, exc_info=error)
    return ModelError("failed", f"{label} raised {kind}: a bug in the function; the traceback is in the log")


def _is_defect(error: BaseException) -> bool:
    # Subclasses of others (a client's own errors, a JSON decoder's) say that something came back, and what.
    if type(error).__module__ != "builtins" or isinstance(error, _OUTSIDE) or not isinstance(error, _DEFECTS):
        return False
    return not (isinstance(error, _TAKEN_AWAY) and _library_of(error.__traceback__) in _TRANSPORT)


def _library_of(traceback: TracebackType | None) -> str:
    """The package of the code that raised."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    name = "" if traceback is None else traceback.tb_frame.f_globals.get("__name__")
    return str(name or "").partition(".")[0]


def _is_first(fn: Any, kind: str) -> bool:
    """Whether *fn* raises a *kind* for the first time."""
    key, mine = (id(fn), kind), object()
    # Atomic: one question may fail in several threads at once.
    if _reported.setdefault(key, mine) is not mine:
        return False
    try:
        finalize(fn, _reported.pop, key, None).atexit = False
    except TypeError:
        _reported[key] = fn  # It cannot be watched, and must not go while its id is remembered.
    return True


def _format_stack(error: BaseException, fn: Any) -> str:
    frames = extract_tb(error.__traceback__, limit=_MOST_FRAMES)
    shown = StackSummary.from_list([it for it in frames if not it.filename.startswith(_OURS)]).format()
    code = getattr(fn, "__code__", None)
    if not shown and code is not None:
        # It could not be called with what it is given.
        shown = [f'  File "{code.co_filename}", line {code.co_firstlineno}, called with one argument, the messages\n']
    return (
        f"Traceback (most recent call last):\n{''.join(shown)}{type(error).__name__} (its message is logged at DEBUG)"
    )
