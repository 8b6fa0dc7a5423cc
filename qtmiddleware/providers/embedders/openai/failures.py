"""What a client raised, as a sentence, and whether asking again or asking for less can help."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import EmbeddingError

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 8.0
"""Seconds between two tries where the service does not say."""

_ADVICE: Final = {
    401: "refused the key; check OPENAI_API_KEY",
    403: "refused the key or the model; check OPENAI_API_KEY and what it may use",
    404: "does not know the model or the address; check embeddingModel and the base URL",
    407: "is behind a proxy that asks for a name and password; check HTTPS_PROXY",
    408: "did not answer in time",
    413: "says a text is too long",
    429: "takes no more requests for now (rate limit)",
}
# Most services give no code with this one, only a sentence.
_TOO_LONG: Final = re.compile(
    r"context.?length|maximum input length|max_tokens_per_request|tokens per request|must have less than"
    r"|too (?:long|large|many tokens)|maximum allowed batch",
    re.IGNORECASE,
)
_TIMEOUTS: Final = frozenset({"APITimeoutError", "TimeoutException", "TimeoutError"})
_CONNECTIONS: Final = frozenset({"APIConnectionError", "TransportError", "OSError"})
_IDENTIFIER: Final = re.compile(r"[a-z][a-z_]{2,39}")


def as_embedding_error(error: Exception, where: str) -> EmbeddingError:
    """The `EmbeddingError` for *error*, raised by a client while asking *where*.

    It names the kind of failure and the service's own error code, where that is a plain identifier; never a key or a
    text, which services like to quote in their messages.
    """
    if isinstance(error, EmbeddingError):
        return error
    if isinstance(error, UnicodeEncodeError):
        # Headers must be ASCII, and the key is the only one that is not ours.
        return EmbeddingError(f"the key for {where} holds letters no key holds; check OPENAI_API_KEY")
    status = _status(error)
    if status is None:
        said = "did not answer in time" if _is(error, _TIMEOUTS) else "cannot be reached"
        if not _is(error, _TIMEOUTS | _CONNECTIONS):
            said = "sent an answer that cannot be read"
        return EmbeddingError(f"{where} {said} ({type(error).__name__}); check the base URL and the network")
    if 300 <= status < 400:
        # Such a status reaches us from clients alone that follow none.
        said = f"redirects to another address (HTTP {status}), which is not followed; check the base URL"
        return EmbeddingError(f"{where} {said}")
    if _code(error) == "insufficient_quota":
        return EmbeddingError(f"{where} says the quota of this key is used up (HTTP {status}); check plan and billing")
    said = _ADVICE.get(status, "is not available" if status >= 500 else "rejected the request")
    code = _code(error)
    return EmbeddingError(f"{where} {said} (HTTP {status}{f', {code}' if _IDENTIFIER.fullmatch(code) else ''})")


def is_too_long(error: Exception) -> bool:
    """Whether the service says that the request, or a text of it, is too long."""
    status = _status(error)
    return status == 413 or (status in {400, 422} and _TOO_LONG.search(str(error)) is not None)


def pause_after(error: Exception, tries: int) -> float | None:
    """The seconds after which *error*, the *tries*-th in a row, is worth another try; ``None`` if it never is."""
    status = _status(error)
    if status is None:
        passing = _is(error, _CONNECTIONS | _TIMEOUTS)
    else:
        passing = (status in {408, 409, 429} or status >= 500) and _code(error) != "insufficient_quota"
    if not passing:
        return None
    wanted = _retry_after(error)
    # Not all at the same moment: they were sent away at the same moment.
    return (
        wanted if wanted is not None else min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
    )


def _retry_after(error: Exception) -> float | None:
    """The seconds the service asks to wait, where it says so as a number."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(AttributeError, TypeError, ValueError):
            seconds = float(headers.get(name)) * unit
            if isfinite(seconds) and seconds >= 0:
                return seconds
    return None


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _is(error: Exception, names: frozenset[str]) -> bool:
    """Whether *error* is of one of these classes, told by name, so that none of them is imported."""
    return any(ancestor.__name__ in names for ancestor in type(error).__mro__)


def _code(error: Exception) -> str:
    body: Any = getattr(error, "body", None)
    code = body.get("code") if isinstance(body, Mapping) else None
    return code if isinstance(code, str) else ""
