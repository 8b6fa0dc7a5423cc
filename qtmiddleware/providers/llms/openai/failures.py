"""What a client raised, as one word a program can act on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Final

from qtmiddleware.errors import ModelError

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
# Two generations of HTTP libraries may stand behind a client, so their classes are told by name and none is imported.
_TIMEOUTS: Final = frozenset({"APITimeoutError", "TimeoutException", "TimeoutError"})
_UNREADABLE: Final = frozenset({"DecodingError", "JSONDecodeError", "APIResponseValidationError"})
_IDENTIFIER: Final = re.compile(r"[a-z][a-z_]{2,39}")

_ADVICE: Final = {
    "timeout": "did not answer in time; raise limits.llmTimeoutMs, for answers answer.timeoutMs, where that is usual",
    "unauthorized": "refused the key; check OPENAI_API_KEY",
    "rate_limited": "takes no more requests for now (rate limit or quota)",
    "refused": "withheld the answer by its content filter",
    "too_long": "says the request is too long for the model",
    "unparsable": "sent an answer that cannot be read",
}


def as_model_error(error: Exception, where: str) -> ModelError:
    """The `ModelError` for *error*, raised by a client while asking *where*.

    Its message names the kind of failure and, for a rejected request, the provider's own error code where that is a
    plain identifier; never a key, a query or a reply, which providers like to quote in theirs.
    """
    if type(error.__cause__).__name__ == "ConnectTimeout":
        return ModelError("timeout", f"{where} cannot be reached (ConnectTimeout); check llm.baseUrl and the network")
    if isinstance(error, UnicodeEncodeError):
        # Headers must be ASCII, and the key is the only one that is not ours.
        return ModelError("unauthorized", f"the key for {where} holds letters no key holds; check OPENAI_API_KEY")
    reason = _reason(error)
    status = getattr(error, "status_code", None)
    if status == 407 or type(error.__cause__).__name__ == "ProxyError":
        return ModelError(reason, f"{where} is behind a proxy that lets nothing through; check HTTPS_PROXY")
    seen = f"HTTP {status}" if isinstance(status, int) else type(error).__name__
    if reason == "rejected":
        return ModelError(reason, f"{where} rejected the request ({seen}{_identifiers(error)}); check model and config")
    if reason == "unavailable":
        said = f"{where} is not available ({seen}); check llm.baseUrl and the network"
        if isinstance(status, int) and status < 400:
            said = f"{where} redirects to another address ({seen}), which is not followed; check llm.baseUrl"
        return ModelError(reason, said, retry_after=_retry_after(error))
    return ModelError(reason, f"{where} {_ADVICE[reason]} ({seen})", retry_after=_retry_after(error))


def _reason(error: Exception) -> str:
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        if status in _STATUS:
            return _STATUS[status]
        if 400 <= status < 500:
            return _CODE.get(_field(error, "code"), "rejected")
        return "unavailable" if status >= 300 else "unparsable"
    names = {ancestor.__name__ for ancestor in type(error).__mro__}
    if names & _TIMEOUTS:
        return "timeout"
    return "unparsable" if names & _UNREADABLE else "unavailable"


def _retry_after(error: Exception) -> float | None:
    """For how many seconds the service asks to be left alone: a number or a date in its header (RFC 9110, 10.2.3)."""
    said = str(getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")).strip()
    if said.isascii() and said.isdigit():
        return min(float(said), LONGEST_REST)
    try:
        seconds = parsedate_to_datetime(said).timestamp() - time()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_REST)


def _identifiers(error: Exception) -> str:
    found = ((name, _field(error, name)) for name in ("code", "param"))
    return "".join(f", {name} {value}" for name, value in found if _IDENTIFIER.fullmatch(value))


def _field(error: Exception, name: str) -> str:
    body: Any = getattr(error, "body", None)
    value = body.get(name) if isinstance(body, Mapping) else None
    return value if isinstance(value, str) else ""
