"""Log records: no handler or filter costs an answer, and what repeats itself is sampled."""

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
"""How long after a record the next one of its kind is left out and counted."""
# Reasons are few, but a model of the user's own may give any.
_MOST_KINDS: Final = 64
# How much of somebody else's error is written: frames of its stack, and characters at either end.
_MOST_FRAMES: Final = 50
_MOST_SHOWN: Final = 8_000


_OF_LOGGING: Final = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that drops what its handlers and filters raise, as a record is worth no answer.

    What a record tells is said for programs too: all arguments by name that `logging` does not know
    are the record's attribute ``qtm``, one dictionary, in which no name can be that of an attribute
    of `logging`. Its ``event`` says what happened; plain values alone, and no text of a query,
    passage or reply.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Returns *msg* and, of *kwargs*, those of `logging`, with all others as the extra ``qtm``."""
        own = {name: kwargs.pop(name) for name in list(kwargs) if name not in _OF_LOGGING}
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "qtm": own}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a record that names the caller's own line; raises no `Exception`."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        with suppress(Exception):
            super().log(level, msg, *args, **kwargs)


def get_logger(name: str) -> SafeLogger:
    """The logger of this *name*, which begins with ``qtmiddleware``."""
    return SafeLogger(logging.getLogger(name))


def quote(text: str) -> str:
    """*text* in double quotes and on one line, as it is but for what cannot be printed."""
    shown = (it if it.isprintable() else it.encode("unicode_escape").decode("ascii") for it in text)
    return f'"{"".join(shown)}"'


def format_error(error: BaseException) -> str:
    """*error* of somebody else's with its stack, for a record at DEBUG, as it may quote texts; without keys in it."""
    from traceback import format_exception

    from qtmiddleware.config.errors import hide_secrets

    try:
        # Before it is cut, which may leave half a key.
        text = hide_secrets("".join(format_exception(error, limit=-_MOST_FRAMES)).rstrip())
    except Exception:
        return type(error).__name__
    return (
        text if len(text) <= 2 * _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ... {text[-_MOST_SHOWN:]}"
    )


def times(count: int) -> str:
    """*count* in words of a record."""
    return "1 time" if count == 1 else f"{count} times"


class LogSampler:
    """At most one record of each kind in *seconds*; the next one says how many were left out since.

    The last count of a kind is logged by whichever call comes first after its time, or by `flush`,
    so that none is lost. Thread-safe; a forked process begins with nothing counted.
    """

    def __init__(
        self, seconds: float = SAMPLE_SECONDS, *, clock: Callable[[], float] = monotonic
    ) -> None:
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
        """Log that *what* happened, in the words *said* if given, with those of *kinds* that a record is due for.

        *details* say more of a kind, in the words of this package alone, and do not tell one kind
        from another. The record's attribute ``degradation`` is *what*, by which handlers can tell
        such records from others. Its ``qtm`` holds *about*, *what* as the event, and ``counts``:
        how often each kind happened since its last record, this time included, so that the counts
        of all records add up to how often it did.
        """
        kinds = tuple(dict.fromkeys(kinds))
        if not kinds and not self._kinds:
            return
        with self._lock:
            now = self._clock()
            due = [it for kind in kinds if (it := self._take(what, kind, now))]
            over = self._end(now - self._seconds)
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
        self._write_counts(logger, over)

    def flush(self, logger: SafeLogger) -> None:
        """Log how many records of every kind were left out."""
        with self._lock:
            over = self._end(self._clock())
        self._write_counts(logger, over)

    def _write_counts(self, logger: SafeLogger, over: Iterable[tuple[str, str, int, str]]) -> None:
        for what, kind, count, line in over:
            event = what.replace(" ", "_")
            logger.warning(
                "%s", line, extra={"degradation": what}, event=event, counts={kind: count}
            )

    def _take(self, what: str, kind: str, now: float) -> tuple[str, int, str] | None:
        """Returns *kind*, its count with the records left out, and both in words; ``None`` to leave this out, too."""
        if (what, kind) not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = "other reasons"
        known = self._kinds.get((what, kind))
        since, count = known or (now, 0)
        if known is not None and now - since < self._seconds:
            self._kinds[what, kind] = since, count + 1
            return None
        self._kinds[what, kind] = now, 0
        return (
            kind,
            count + 1,
            f"{kind} (and {count} more in the last {now - since:.0f} s)" if count else kind,
        )

    def _end(self, until: float) -> list[tuple[str, str, int, str]]:
        """Forget the kinds whose last record was written at *until* or before; returns what to say of each of them."""
        now, ended = self._clock(), [it for it, (since, _) in self._kinds.items() if since <= until]
        counts = [(what, kind, *self._kinds.pop((what, kind))) for what, kind in ended]
        return [
            (
                what,
                kind,
                count,
                (
                    f"{what} {times(count).replace(' ', ' more ')} in the last {now - since:.0f} s:"
                    f" {kind}"
                ),
            )
            for what, kind, since, count in counts
            if count
        ]


def _add_detail(kind: str, text: str, details: Mapping[str, str]) -> str:
    """Return the *text* on a *kind*, which begins with its name, with what is known of it behind that name."""
    detail = " ".join(details.get(kind, "").split())
    return f"{kind} ({detail}){text.removeprefix(kind)}" if detail else text


class Outage:
    """Says when to log that something fails, and that it works again: one record each, none in between.

    Where it comes and goes, at most one outage in *seconds* is logged, and the others are counted.
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
