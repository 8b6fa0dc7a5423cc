"""Log records: no handler or filter costs an answer, and what repeats itself is sampled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any, Final

from qtmiddleware.runtime.forking import renew_after_fork

SAMPLE_SECONDS: Final = 60.0
"""How long after a record the next one of its kind is left out and counted."""
# Reasons are few, but a model of the user's own may give any.
_MOST_KINDS: Final = 64


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that drops what its handlers and filters raise, as a record is worth no answer."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Returns both as they are."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a record that names the caller's own line; raises no `Exception`."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        with suppress(Exception):
            super().log(level, msg, *args, **kwargs)


def get_logger(name: str) -> SafeLogger:
    """The logger of this *name*, which begins with ``qtmiddleware``."""
    return SafeLogger(logging.getLogger(name))


def times(count: int) -> str:
    """*count* in words of a record."""
    return "1 time" if count == 1 else f"{count} times"


class LogSampler:
    """At most one record of each kind in *seconds*; the next one says how many were left out since.

    The last count of a kind is logged by whichever call comes first after its time, or by `flush`, so that none is
    lost. Thread-safe; a forked process begins with nothing counted.
    """

    def __init__(self, seconds: float = SAMPLE_SECONDS, *, clock: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the counts: the parent logs them."""
        self._lock = Lock()
        # When the last record of a kind was written, and how many were left out since.
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def log(
        self, logger: SafeLogger, what: str, kinds: Iterable[str], *, said: str = "", level: int = logging.WARNING
    ) -> None:
        """Log that *what* happened, in the words *said* if given, with those of *kinds* that a record is due for.

        The record's attribute ``degradation`` is *what*, by which handlers can tell such records from others.
        """
        kinds = tuple(dict.fromkeys(kinds))
        if not kinds and not self._kinds:
            return
        with self._lock:
            now = self._clock()
            due = [text for kind in kinds if (text := self._take(what, kind, now))]
            over = self._end(now - self._seconds)
        if due:
            logger.log(level, "%s: %s", said or what, "; ".join(due), stacklevel=2, extra={"degradation": what})
        self._write_counts(logger, over)

    def flush(self, logger: SafeLogger) -> None:
        """Log how many records of every kind were left out."""
        with self._lock:
            over = self._end(self._clock())
        self._write_counts(logger, over)

    def _write_counts(self, logger: SafeLogger, over: Iterable[tuple[str, str]]) -> None:
        for what, line in over:
            logger.warning("%s", line, extra={"degradation": what})

    def _take(self, what: str, kind: str, now: float) -> str:
        """Returns *kind* with the number of records left out; ``""`` where this one is left out, too."""
        if (what, kind) not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = "other reasons"
        known = self._kinds.get((what, kind))
        since, count = known or (now, 0)
        if known is not None and now - since < self._seconds:
            self._kinds[what, kind] = since, count + 1
            return ""
        self._kinds[what, kind] = now, 0
        return f"{kind} (and {count} more in the last {now - since:.0f} s)" if count else kind

    def _end(self, until: float) -> list[tuple[str, str]]:
        """Forget the kinds whose last record was written at *until* or before; returns what to say of each of them."""
        now, ended = self._clock(), [it for it, (since, _) in self._kinds.items() if since <= until]
        counts = [(what, kind, *self._kinds.pop((what, kind))) for what, kind in ended]
        return [
            (what, f"{what} {times(count).replace(' ', ' more ')} in the last {now - since:.0f} s: {kind}")
            for what, kind, since, count in counts
            if count
        ]


class Outage:
    """Says when to log that something fails, and that it works again: one record each, none in between.

    Where it comes and goes, at most one outage in *seconds* is logged, and the others are counted. Thread-safe.
    """

    def __init__(self, seconds: float = SAMPLE_SECONDS, *, clock: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the outage: the parent logs it."""
        self._lock = Lock()
        self._is_logged = False
        self._logged_at = float("-inf")
        self._count = 0

    def record_failure(self) -> int | None:
        """Count a failure; returns how many there were where that is to be logged now, else ``None``."""
        with self._lock:
            self._count += 1
            now = self._clock()
            if self._is_logged or now - self._logged_at < self._seconds:
                return None
            self._is_logged, self._logged_at = True, now
            return self._count

    def record_success(self) -> int | None:
        """Returns how many failures there were where it is to be logged that it works again, else ``None``."""
        if not self._is_logged:
            return None
        with self._lock:
            if not self._is_logged:
                return None
            self._is_logged = False
            count, self._count = self._count, 0
            return count
