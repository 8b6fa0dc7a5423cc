"""Log so that a broken log handler never fails a query, and skip repeated records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from qtmiddleware.runtime.forking import make_lock

SAMPLE_SECONDS: Final = 60.0
"""The number of seconds after a record in which the same event and reason are not logged again."""
# How much of a foreign error is logged: frames of its stack, and characters.
_MOST_FRAMES: Final = 50
_MOST_SHOWN: Final = 16_000


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that ignores exceptions of its handlers and filters.

    Additional keyword arguments are stored in the record's attribute ``qtm``, for programs. The
    entry ``event`` names what happened. No entry contains the text of a query, passage or reply.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return *msg* and *kwargs*. Arguments that `logging` does not know move into ``qtm``."""
        extra, error = kwargs.pop("extra", {}), kwargs.pop("exc_info", None)
        return msg, {"exc_info": error, "extra": {**extra, "qtm": kwargs}}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a record. Errors of handlers are ignored."""
        with suppress(Exception):
            super().log(level, msg, *args, **kwargs)


def get_logger(name: str) -> SafeLogger:
    """Return the logger *name*, such as ``qtmiddleware.stores``."""
    return SafeLogger(logging.getLogger(name))


def format_error(error: BaseException) -> str:
    """Return the traceback of *error* without keys, only for DEBUG: it may quote a query."""
    from traceback import format_exception

    from qtmiddleware.config.errors import hide_secrets

    try:
        # Keys are hidden before the text is cut, as a cut may leave half a key.
        return hide_secrets("".join(format_exception(error, limit=-_MOST_FRAMES)))[:_MOST_SHOWN]
    except Exception:
        return type(error).__name__


class LogSampler:
    """Logs each reason for an event at most once a minute. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = make_lock()
        # By event and reason: the time of the last record.
        self._logged: dict[tuple[str, str], float] = {}

    def log(
        self,
        logger: SafeLogger,
        event: str,
        reasons: Mapping[str, str],
        *,
        message: str,
        level: int = logging.WARNING,
        **values: Any,
    ) -> None:
        """Log *event* with those *reasons*, each with its detail, that were not logged recently."""
        texts: list[str] = []
        for reason, detail in reasons.items():
            now, key = self._clock(), (event, reason)
            with self._lock:
                is_recent = now < self._logged.get(key, float("-inf")) + SAMPLE_SECONDS
                if not is_recent:
                    self._logged[key] = now
            if not is_recent:
                # A record is one line, but an error's message may have several.
                note = " ".join(detail.split())
                texts.append(f"{reason} ({note})" if note else reason)
        if texts:
            logger.log(level, "%s: %s", message, "; ".join(texts), event=event, **values)
