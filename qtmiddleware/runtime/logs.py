"""Log so that a broken log handler never fails a query, and skip repeated records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from qtmiddleware.runtime.forking import make_lock

SAMPLE_SECONDS: Final = 60.0
"""The number of seconds after a record in which the same event and reason are not logged again."""
# There are few reasons, but a user's own model may raise an error with any reason.
_MOST_REASONS: Final = 64
# How much of a foreign error is logged: frames of its stack, and characters at either end.
_MOST_FRAMES: Final = 50
_MOST_SHOWN: Final = 8_000


_LOGGING_KEYWORDS: Final = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that ignores exceptions of its handlers and filters.

    Additional keyword arguments are stored in the record's attribute ``qtm``, a dictionary for
    programs. The entry ``event`` names what happened. No entry contains the text of a query,
    passage or reply.
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
    """Return *text* on one line, in double quotes, with unprintable characters escaped."""
    pieces = (
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
    return f'"{"".join(pieces)}"'


def format_error(error: BaseException) -> str:
    """Return the traceback of *error* as text, without keys, for a record at DEBUG level.

    Do not log the result at a higher level, because it may quote a query or passage. Keeps at most
    50 stack frames, and only the first and last 8,000 characters of a long text.
    """
    from traceback import format_exception

    from qtmiddleware.config.errors import hide_secrets

    try:
        # Keys are hidden before the text is cut, as a cut may leave half a key.
        text = hide_secrets("".join(format_exception(error, limit=-_MOST_FRAMES)).rstrip())
    except Exception:
        return type(error).__name__
    return (
        text if len(text) <= 2 * _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ... {text[-_MOST_SHOWN:]}"
    )


def format_repetitions(repetition_count: int) -> str:
    """Return how often something happened, such as "1 time" or "3 times"."""
    return "1 time" if repetition_count == 1 else f"{repetition_count} times"


class LogSampler:
    """Logs each reason for an event at most once per interval, and counts the skipped records.

    The interval is *min_interval_seconds*. A later call of `log` or `flush` logs how many records
    were skipped, so that no count is lost. Thread-safe.
    """

    def __init__(
        self,
        min_interval_seconds: float = SAMPLE_SECONDS,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._seconds = min_interval_seconds
        self._clock = clock
        self._lock = make_lock()
        # By event and reason: the time of the last record, and how many were skipped since.
        self._last_records: dict[tuple[str, str], tuple[float, int]] = {}

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
        """Log an event with those reasons that were not logged recently.

        The record has two attributes for handlers: ``degradation`` is *event_name*, and ``qtm``
        holds *values*, ``event`` and ``counts``. The counts say how often each reason occurred
        since its last record, including now.

        Args:
            logger: The logger that writes the record.
            event_name: The event, such as "answer degraded".
            reasons: The reasons for the event. Each reason is sampled separately.
            message: The text of the record; by default *event_name*.
            details: More text to log for some of the reasons, by reason.
            level: The record's level.
            stacklevel: How many frames up the caller's line is.
            **values: More values for programs.
        """
        reasons = tuple(dict.fromkeys(reasons))
        # Most retrievals are not degraded. They do not wait for the lock.
        if not reasons and not self._last_records:
            return
        with self._lock:
            now = self._clock()
            due = [
                counted
                for reason in reasons
                if (counted := self._count_reason(event_name, reason, now))
            ]
            skipped = self._pop_skipped_counts(now - self._seconds)
        # Logged without the lock, because a handler may be slow or may log something itself.
        if due:
            values |= {
                "event": event_name.replace(" ", "_"),
                "counts": {reason: count for reason, count, _ in due},
            }
            texts = "; ".join(_add_detail(reason, text, details) for reason, _, text in due)
            extra = {"degradation": event_name}
            logger.log(
                level,
                "%s: %s",
                message or event_name,
                texts,
                stacklevel=stacklevel + 1,
                extra=extra,
                **values,
            )
        self._log_skipped_counts(logger, skipped)

    def flush(self, logger: SafeLogger) -> None:
        """Log how many records were skipped for each event and reason."""
        with self._lock:
            skipped = self._pop_skipped_counts(self._clock())
        self._log_skipped_counts(logger, skipped)

    def _log_skipped_counts(
        self, logger: SafeLogger, rows: Iterable[tuple[str, str, int, str]]
    ) -> None:
        for event_name, reason, count, line in rows:
            event = event_name.replace(" ", "_")
            logger.warning(
                "%s", line, extra={"degradation": event_name}, event=event, counts={reason: count}
            )

    def _count_reason(
        self, event_name: str, reason: str, now: float
    ) -> tuple[str, int, str] | None:
        """Count *reason*, and return its record if it should be logged now.

        Returns:
            reason: The reason's name; "other reasons" if there are too many reasons.
            count: How often the reason occurred since its last record, including now.
            text: The text to log.

            Returns ``None`` instead if the reason was logged recently.
        """
        if (event_name, reason) not in self._last_records and len(
            self._last_records
        ) >= _MOST_REASONS:
            reason = "other reasons"
        entry = self._last_records.get((event_name, reason))
        since, count = entry or (now, 0)
        if entry is not None and now - since < self._seconds:
            self._last_records[event_name, reason] = since, count + 1
            return None
        self._last_records[event_name, reason] = now, 0
        return (
            reason,
            count + 1,
            f"{reason} (and {count} more in the last {now - since:.0f} s)" if count else reason,
        )

    def _pop_skipped_counts(self, logged_until: float) -> list[tuple[str, str, int, str]]:
        """Remove the reasons last logged at *logged_until* or before, and return their counts.

        Returns one tuple per reason with skipped records: the event, the reason, the number of
        skipped records, and a line to log.
        """
        now, ended = (
            self._clock(),
            [key for key, (since, _) in self._last_records.items() if since <= logged_until],
        )
        counts = [
            (event_name, reason, *self._last_records.pop((event_name, reason)))
            for event_name, reason in ended
        ]
        return [
            (
                event_name,
                reason,
                count,
                (
                    f"{event_name} {format_repetitions(count).replace(' ', ' more ')} in the last"
                    f" {now - since:.0f} s: {reason}"
                ),
            )
            for event_name, reason, since, count in counts
            if count
        ]


def _add_detail(reason: str, record_text: str, details_by_reason: Mapping[str, str]) -> str:
    """Return *record_text* with the detail of *reason* in brackets after the reason.

    *record_text* begins with *reason*. If *reason* has no detail, *record_text* is returned
    unchanged.
    """
    # A record is one line, but an error's message may have several.
    detail = " ".join(details_by_reason.get(reason, "").split())
    return f"{reason} ({detail}){record_text.removeprefix(reason)}" if detail else record_text


class Outage:
    """Decides when to log an outage: once when it begins and once when it ends.

    At most one outage every *min_interval_seconds* is logged, so that a service that fails now and
    then does not fill the log. All failures are counted. Thread-safe.
    """

    def __init__(
        self,
        min_interval_seconds: float = SAMPLE_SECONDS,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._seconds = min_interval_seconds
        self._clock = clock
        self._lock = make_lock()
        self._is_logged = False
        self._logged_at = float("-inf")
        self._count = 0

    def record_failure(self) -> int | None:
        """Count a failure, and return the number of failures if it should be logged now.

        Returns ``None`` if the failure should not be logged.
        """
        with self._lock:
            self._count += 1
            now = self._clock()
            if self._is_logged or now - self._logged_at < self._seconds:
                return None
            self._is_logged, self._logged_at = True, now
            return self._count

    def record_success(self) -> int | None:
        """End the outage, and return the number of failures if the recovery should be logged.

        Returns ``None`` if no outage was logged.
        """
        # Most calls succeed while there is no outage. They do not wait for the lock.
        if not self._is_logged:
            return None
        with self._lock:
            if not self._is_logged:
                return None
            self._is_logged = False
            count, self._count = self._count, 0
            return count
