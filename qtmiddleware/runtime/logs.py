"""Log safely: an error in a log handler never fails a query, and repeated records are sampled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from qtmiddleware.runtime.forking import renew_after_fork

SAMPLE_SECONDS: Final = 60.0
"""How many seconds after a record another one of its kind is only counted."""
# There are few reasons, but a user's own model may give any text as one.
_MOST_KINDS: Final = 64
# How much of a foreign error is logged: frames of its stack, and characters at either end.
_MOST_FRAMES: Final = 50
_MOST_SHOWN: Final = 8_000


_LOGGING_KEYWORDS: Final = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that ignores exceptions of its handlers and filters.

    Keyword arguments that `logging` does not know become the record's attribute ``qtm``, a
    dictionary for programs. The name ``qtm`` cannot clash with an attribute of `logging`. The entry
    ``event`` says what happened. The values never contain the text of a query, passage or reply.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return *msg*, and *kwargs* with all arguments unknown to `logging` moved into ``qtm``."""
        details = {name: kwargs.pop(name) for name in list(kwargs) if name not in _LOGGING_KEYWORDS}
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "qtm": details}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a record with the line number of the caller; never raise an `Exception`."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        with suppress(Exception):
            super().log(level, msg, *args, **kwargs)


def get_logger(name: str) -> SafeLogger:
    """Return the logger called *name*, which must begin with ``qtmiddleware``."""
    return SafeLogger(logging.getLogger(name))


def quote(text: str) -> str:
    """Return *text* in double quotes on one line, with unprintable characters escaped."""
    pieces = (
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
    return f'"{"".join(pieces)}"'


def format_error(error: BaseException) -> str:
    """Return *error* and its stack as text, with keys removed, for a record at DEBUG level.

    Never log the text above DEBUG, because it may quote a query or passage. It has at most 50 stack
    frames; of a text longer than 16,000 characters, the first and last 8,000 are kept.
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


def format_repetitions(count: int) -> str:
    """Return *count* as a phrase, such as "1 time" or "3 times"."""
    return "1 time" if count == 1 else f"{count} times"


class LogSampler:
    """Writes at most one log record per kind and interval, and counts the skipped records.

    The interval is *seconds* long. The first call of `log` after an interval, or `flush`, also logs
    how many records were skipped, so that no count is lost. Thread-safe; a forked process begins
    with all counts at 0.
    """

    def __init__(
        self, seconds: float = SAMPLE_SECONDS, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, forget the counts, which the parent process will log."""
        self._lock = Lock()
        # When the last record of a kind was written, and how many were left out since.
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def log(
        self,
        logger: SafeLogger,
        what: str,
        kinds: Iterable[str],
        *,
        said: str = "",
        details: Mapping[str, str] = MappingProxyType({}),
        level: int = logging.WARNING,
        stacklevel: int = 1,
        **about: Any,
    ) -> None:
        """Log the event *what*, with those of *kinds* that were not logged recently.

        Each kind is logged at most once per interval of the sampler. Handlers can recognise these
        records by the attribute ``degradation``, which is *what*. The attribute ``qtm`` holds
        *about*, *what* as the ``event``, and ``counts``: how often each kind happened since its
        last record, including now. The counts of all records add up to the total for each kind.

        Args:
            logger: The logger that writes the record.
            what: The event, such as "answer degraded".
            kinds: The reasons; each reason is sampled separately.
            said: The text of the record; by default *what*.
            details: More text about each kind, in this package's own words. Details do not affect
                the sampling.
            level: The record's level.
            stacklevel: How many frames up the caller's line is.
            **about: More values for programs.
        """
        kinds = tuple(dict.fromkeys(kinds))
        if not kinds and not self._kinds:
            return
        with self._lock:
            now = self._clock()
            due = [counted for kind in kinds if (counted := self._count_kind(what, kind, now))]
            ended = self._remove_ended_kinds(now - self._seconds)
        if due:
            about |= {
                "event": what.replace(" ", "_"),
                "counts": {kind: count for kind, count, _ in due},
            }
            texts = "; ".join(_add_detail(kind, text, details) for kind, _, text in due)
            extra = {"degradation": what}
            logger.log(
                level,
                "%s: %s",
                said or what,
                texts,
                stacklevel=stacklevel + 1,
                extra=extra,
                **about,
            )
        self._write_counts(logger, ended)

    def flush(self, logger: SafeLogger) -> None:
        """Log the number of skipped records of each kind."""
        with self._lock:
            ended = self._remove_ended_kinds(self._clock())
        self._write_counts(logger, ended)

    def _write_counts(self, logger: SafeLogger, rows: Iterable[tuple[str, str, int, str]]) -> None:
        for what, kind, count, line in rows:
            event = what.replace(" ", "_")
            logger.warning(
                "%s", line, extra={"degradation": what}, event=event, counts={kind: count}
            )

    def _count_kind(self, what: str, kind: str, now: float) -> tuple[str, int, str] | None:
        """Count *kind*, and return its name, count and text if it should be logged now.

        Returns ``None`` if the kind was logged recently. The count includes the records skipped
        since the last record of the kind.
        """
        if (what, kind) not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = "other reasons"
        entry = self._kinds.get((what, kind))
        since, count = entry or (now, 0)
        if entry is not None and now - since < self._seconds:
            self._kinds[what, kind] = since, count + 1
            return None
        self._kinds[what, kind] = now, 0
        return (
            kind,
            count + 1,
            f"{kind} (and {count} more in the last {now - since:.0f} s)" if count else kind,
        )

    def _remove_ended_kinds(self, until: float) -> list[tuple[str, str, int, str]]:
        """Remove the kinds last logged at *until* or before, and return their skipped records.

        Returns one tuple per kind with skipped records: the event, the kind, the count, and a line
        to log.
        """
        now, ended = (
            self._clock(),
            [key for key, (since, _) in self._kinds.items() if since <= until],
        )
        counts = [(what, kind, *self._kinds.pop((what, kind))) for what, kind in ended]
        return [
            (
                what,
                kind,
                count,
                (
                    f"{what} {format_repetitions(count).replace(' ', ' more ')} in the last"
                    f" {now - since:.0f} s: {kind}"
                ),
            )
            for what, kind, since, count in counts
            if count
        ]


def _add_detail(kind: str, text: str, details: Mapping[str, str]) -> str:
    """Return *text* with the detail of *kind* in brackets after *kind*.

    *text* begins with *kind*. If *details* has no detail, *text* is unchanged.
    """
    detail = " ".join(details.get(kind, "").split())
    return f"{kind} ({detail}){text.removeprefix(kind)}" if detail else text


class Outage:
    """Decides when to log an outage: once when it begins and once when it ends.

    If failures come and go, at most one outage per *seconds* is logged, and the others are counted.
    Thread-safe.
    """

    def __init__(
        self, seconds: float = SAMPLE_SECONDS, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, forget the outage, which the parent process will log."""
        self._lock = Lock()
        self._is_logged = False
        self._logged_at = float("-inf")
        self._count = 0

    def record_failure(self) -> int | None:
        """Count a failure; return the number of failures if the outage should be logged now.

        Returns ``None`` otherwise.
        """
        with self._lock:
            self._count += 1
            now = self._clock()
            if self._is_logged or now - self._logged_at < self._seconds:
                return None
            self._is_logged, self._logged_at = True, now
            return self._count

    def record_success(self) -> int | None:
        """Record that a call succeeded, which ends the outage.

        Returns the number of failures if the recovery should be logged, else ``None``.
        """
        if not self._is_logged:
            return None
        with self._lock:
            if not self._is_logged:
                return None
            self._is_logged = False
            count, self._count = self._count, 0
            return count
