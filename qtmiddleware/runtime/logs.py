"""Log so that a broken log handler never fails a query, and skip repeated records."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from qtmiddleware.runtime.control_characters import escape_json
from qtmiddleware.runtime.forking import make_lock

SAMPLE_SECONDS: Final = 60.0
"""The number of seconds after a record in which the same event and reason are not logged again."""
# How much of a foreign error is logged: frames of its stack, and characters at either end.
_MOST_FRAMES: Final = 50
_MOST_SHOWN: Final = 8_000
_LOGGING_KEYWORDS: Final = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that ignores exceptions of its handlers and filters.

    Additional keyword arguments are stored in the record's attribute ``qtm``, for programs. The
    entry ``event`` names what happened. No entry contains the text of a query, passage or reply.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return *msg* and *kwargs*. Arguments that `logging` does not know move into ``qtm``."""
        details = {name: kwargs.pop(name) for name in list(kwargs) if name not in _LOGGING_KEYWORDS}
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "qtm": details}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a record with the caller's line number. Errors of handlers are ignored."""
        # One frame more, for this method, so that the record names the caller's line.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        with suppress(Exception):
            super().log(level, msg, *args, **kwargs)


def get_logger(name: str) -> SafeLogger:
    """Return the logger *name*, such as ``qtmiddleware.stores``."""
    return SafeLogger(logging.getLogger(name))


def quote_text(text: str) -> str:
    """Return *text* on one line, in double quotes, with control characters escaped as in JSON."""
    return escape_json(json.dumps(text, ensure_ascii=False))


def format_error(error: BaseException) -> str:
    """Return the traceback of *error* without keys, only for DEBUG: it may quote a query."""
    from traceback import format_exception

    from qtmiddleware.config.errors import hide_secrets

    try:
        # Keys are hidden before the text is cut, as a cut may leave half a key.
        text = hide_secrets("".join(format_exception(error, limit=-_MOST_FRAMES)).rstrip())
    except Exception:
        return type(error).__name__
    if len(text) <= 2 * _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]} ... {text[-_MOST_SHOWN:]}"


class LogSampler:
    """Logs each reason for an event at most once a minute, and then how often it was skipped.

    Thread-safe.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = make_lock()
        # By event and reason: the time of the last record, and how many were skipped since.
        self._skipped: dict[tuple[str, str], tuple[float, int]] = {}

    def log(
        self,
        logger: SafeLogger,
        event_name: str,
        reasons: Iterable[str],
        *,
        message: str = "",
        details: Mapping[str, str] = MappingProxyType({}),
        level: int = logging.WARNING,
        stacklevel: int = 1,
        **values: Any,
    ) -> None:
        """Log an event with those reasons that were not logged recently."""
        # Most retrievals are not degraded. They do not wait for the lock.
        if not reasons and not self._skipped:
            return
        self.flush(logger, min_age_seconds=SAMPLE_SECONDS)
        texts: dict[str, str] = {}
        with self._lock:
            for reason in dict.fromkeys(reasons):
                since, skipped = self._skipped.get((event_name, reason), (self._clock(), -1))
                self._skipped[event_name, reason] = since, skipped + 1
                if skipped < 0:
                    # A record is one line, but an error's message may have several.
                    detail = " ".join(details.get(reason, "").split())
                    texts[reason] = f"{reason} ({detail})" if detail else reason
        if texts:
            values |= {"event": event_name.replace(" ", "_"), "counts": dict.fromkeys(texts, 1)}
            text, stacklevel = "; ".join(texts.values()), stacklevel + 1
            logger.log(
                level, "%s: %s", message or event_name, text, stacklevel=stacklevel, **values
            )

    def flush(self, logger: SafeLogger, *, min_age_seconds: float = 0.0) -> None:
        """Log how many records were skipped for each event and reason, and forget these reasons."""
        with self._lock:
            now = self._clock()
            ended = {
                key: (now - since, skipped)
                for key, (since, skipped) in self._skipped.items()
                if now - since >= min_age_seconds
            }
            for key in ended:
                del self._skipped[key]
        # Logged without the lock, because a handler may be slow or may log something itself.
        for (event_name, reason), (seconds, skipped) in ended.items():
            if skipped:
                times = "1 more time" if skipped == 1 else f"{skipped} more times"
                line = f"{event_name} {times} in the last {seconds:.0f} s: {reason}"
                event = event_name.replace(" ", "_")
                logger.warning("%s", line, event=event, counts={reason: skipped})
