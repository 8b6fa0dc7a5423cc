"""Convert the errors of clients and of users' functions to `ModelError`."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from traceback import format_tb
from typing import Any, Final

from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.errors import (
    REASONS,
    ModelError,
    build_safe_error,
    is_raised_by_package,
    limit_pause,
)
from qtmiddleware.retrieval.fields import read_field
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.types import Deadline

_STATUS: Final = {
    401: "unauthorized",
    403: "unauthorized",
    408: "timeout",
    413: "too_long",
    429: "rate_limited",
}
# Providers send 400 for many causes, so the code in the body tells them apart.
_CODE: Final = {
    "content_filter": "refused",
    "content_policy_violation": "refused",
    "context_length_exceeded": "too_long",
    "invalid_api_key": "unauthorized",
}
_ADVICE: Final = {
    "timeout": "is too slow; for a language model, raise limits.llmTimeoutMs or answer.timeoutMs",
    "unauthorized": "rejected the key; check OPENAI_API_KEY and its permissions",
    "rate_limited": "accepts no more requests for now",
    "refused": "withheld the answer by its content filter",
    "too_long": "says the request is too long for the model",
    "rejected": "rejected the request; check the model and the config",
    "unavailable": "is not available; check llm.baseUrl or OPENAI_BASE_URL and the network",
    "unparsable": "sent no readable response; check llm.baseUrl or OPENAI_BASE_URL",
}
# Any other text of a provider may quote a key or a query.
_IDENTIFIER: Final = re.compile(r"[a-z][a-z_]{2,39}")
# Python's own errors that come from outside. All others are bugs.
_FROM_OUTSIDE: Final = (OSError, UnicodeError, EOFError, MemoryError, ExceptionGroup)

_log = get_logger("qtmiddleware")
_reported: set[tuple[str, str]] = set()


def require_seconds_left(deadline: Deadline) -> float:
    """Return the seconds left until *deadline*; raise ``timeout`` or ``cancelled`` if none are."""
    seconds = deadline.remaining()
    if seconds <= 0:
        # A cancelled deadline has the time 0.
        reason = "timeout" if deadline.at > 0 else "cancelled"
        raise ModelError(reason, "no time was left to call the language model")
    return seconds


def convert_client_error(error: Exception, service: str) -> ModelError:
    """Return the `ModelError` for an *error* of the ``openai`` client.

    The message never contains a key, a query or a reply, although providers often quote them.
    """
    if isinstance(error, ModelError):
        return error
    reason = _choose_reason(error)
    status = read_status(error)
    failure = type(error).__name__ if status is None else f"HTTP {status}"
    if reason == "rejected":
        for name in ("code", "param"):
            if _IDENTIFIER.fullmatch(value := read_body_field(error, name)):
                failure += f", {name} {value}"
    pause = _read_retry_after(error)
    return ModelError(reason, f"{service} {_ADVICE[reason]} ({failure})", retry_after=pause)


def convert_function_error(error: Exception, fn_name: str) -> ModelError:
    """Return the `ModelError` for an *error* of a user's own model or function.

    Python's own errors, such as `TypeError` and `KeyError`, are bugs: the reason is ``failed``, and
    the first one per function and error type is logged at ERROR with its traceback. An error's own
    message may quote the question, so it is logged only at DEBUG.
    """
    if isinstance(error, ModelError) and error.reason in REASONS and is_raised_by_package(error):
        return error
    kind = type(error).__name__
    if _log.isEnabledFor(logging.DEBUG):
        text = format_error(error)
        _log.debug("%s failed\n%s", fn_name, text, event="model_failed", error=kind)
    if isinstance(error, ModelError):
        return build_safe_error(error, fn_name)
    # A library's own error class, such as the JSON decoder's, means that the service answered
    # something unexpected.
    is_bug = type(error).__module__ == "builtins" and not isinstance(error, _FROM_OUTSIDE)
    if is_bug and type(error) not in (Exception, RuntimeError):
        if (fn_name, kind) not in _reported:
            _reported.add((fn_name, kind))
            # A line of the function may hold a key.
            stack = hide_secrets("".join(format_tb(error.__traceback__)))
            hint = "a function gets one argument, the messages"
            extra: dict[str, Any] = {"event": "model_bug", "error": kind}
            _log.error("%s raised %s (%s)\n%s", fn_name, kind, hint, stack, **extra)
        return ModelError("failed", f"{fn_name} raised {kind}; the traceback is in the log")
    status = read_status(error)
    failure = kind if status is None else f"{kind} (HTTP {status})"
    pause = _read_retry_after(error)
    return ModelError(_choose_reason(error), f"{fn_name} raised {failure}", retry_after=pause)


def _choose_reason(error: Exception) -> str:
    code = read_field(getattr(error, "body", None), "code")
    status = read_status(error)
    if status is None and isinstance(code, int):
        # A gateway may send an error in the middle of a stream, with the status as the code.
        status = code
    if status is not None:
        reason = find_reason_for_status(status)
        return _CODE.get(str(code), reason) if reason == "rejected" else reason
    kind = type(error).__name__
    if "Timeout" in kind:
        return "timeout"
    is_unreadable = isinstance(error, ValueError | RecursionError)
    return "unparsable" if is_unreadable or "Validation" in kind else "unavailable"


def find_reason_for_status(status: int) -> str:
    """Return the `ModelError` reason for the HTTP *status* of an error."""
    return _STATUS.get(status, "rejected" if 400 <= status < 500 else "unavailable")


def read_status(error: Exception) -> int | None:
    """Return the HTTP status of *error*; ``None`` if *error* has no status."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def read_body_field(error: Exception, field_name: str) -> str:
    """Return the string in the field *field_name* of the error's body; ``""`` if there is none."""
    value = read_field(getattr(error, "body", None), field_name)
    return value if isinstance(value, str) else ""


def _read_retry_after(error: Exception) -> float | None:
    """Return the pause in the header ``Retry-After`` in seconds, limited; ``None`` without one."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(TypeError, ValueError):
            return limit_pause(float(headers.get(name)) * unit)
    return None
