"""Transformations that several processes share in Redis; while it fails it is left alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS, Transformation
from qtmiddleware.config.redis_address import RedisAddress
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.forking import Draining, renew_after_fork
from qtmiddleware.runtime.logs import Outage, get_logger

logger: Final = get_logger("qtmiddleware")

FORMAT: Final = 2
"""Part of every key and value: a value of another format is never met, let alone taken for damaged."""

MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1_024

_CONNECTIONS: Final = 32
_SLACK: Final = 0.1
"""Seconds by which a busy process may be late itself before Redis is blamed."""


class RedisCache:
    """Transformations in Redis, each for *ttl_seconds*: what one process asked the model for, the others read.

    *url* is ``redis://host:6379/0``, ``rediss://`` for TLS (options that begin with ``ssl_`` may
    follow, as ``?ssl_ca_certs=ca.pem``) or ``unix:///path?db=0``; user and password are read from
    ``REDIS_USERNAME`` and ``REDIS_PASSWORD``. No wait for Redis is longer than *timeout* seconds,
    nothing is tried twice, and after failures
    *breaker* lets no call through for a while; without Redis every process works as if it were
    alone. Raises `ConfigError` for an address that cannot be used and `MissingExtra` without the
    ``redis`` package; its methods never raise. Connects on first use. Thread-safe; a forked process
    has connections of its own. *was_reached* is whether Redis answered when it was last asked,
    ``None`` before that; *where* is host and port, or the socket's path.
    """

    def __init__(self, url: str, *, timeout: float, ttl_seconds: int, breaker: Breaker) -> None:
        self._address = RedisAddress(url)
        self.where = self._address.where
        self.was_reached: bool | None = None
        self.in_use: Final = Draining(self.close)
        self._timeout = timeout
        self._ttl = ttl_seconds
        self._breaker = breaker
        self._outage = Outage(seconds=0.0)
        self.renew()
        renew_after_fork(self)

    def __repr__(self) -> str:
        return f"RedisCache({self.where})"

    def renew(self) -> None:
        """Begin without connections, as a forked process must."""
        self._client = self._address.client(self._timeout)
        self._places = threading.BoundedSemaphore(_CONNECTIONS)

    @property
    def rest(self) -> float:
        """For how many seconds Redis is left alone after a failure; 0 where it may be asked."""
        return self._breaker.rest

    def get(self, key: str, accepts: Callable[[Transformation], bool]) -> Transformation | None:
        """The transformation under *key*; ``None`` where there is none or Redis fails.

        A value that cannot be read, or that *accepts* refuses, counts as none and is overwritten by
        the next `put`.
        """
        name = _name(key)

        def read() -> bytes:
            # One byte more than may be: what is too large is not even sent.
            value = self._client.getrange(name, 0, MAX_BYTES)
            if not isinstance(value, bytes):
                raise TypeError
            return value

        value = self._call(read)
        if not value:
            return None
        transformation = decode(value) if isinstance(value, bytes) else None
        if transformation is None or transformation.is_empty or not accepts(transformation):
            logger.warning(
                "%s in the shared cache at %s cannot be read and will be overwritten",
                name,
                self.where,
                event="cache_value_unreadable",
            )
            return None
        return transformation

    def put(self, key: str, transformation: Transformation) -> None:
        """Store *transformation* under *key*, in place of whatever is there; not one that is too large."""
        value = encode(transformation)
        if value is not None:
            self._call(lambda: self._client.set(_name(key), value, ex=self._ttl))

    def close(self) -> None:
        """Close the connections of this process; the next call opens others."""
        try:
            self._client.connection_pool.disconnect()
        except Exception as error:
            kind = type(error).__name__
            logger.debug(
                "the connections to %s were not closed: %s",
                self.where,
                kind,
                event="close_failed",
                error=kind,
            )

    def _call(self, command: Callable[[], Any]) -> Any:
        """The reply to *command*; ``None`` where there is none in time, or Redis is left alone."""
        # More calls at once than connections wait for one another: that is our own haste and no
        # failure of Redis.
        if self.rest or not self._places.acquire(timeout=self._timeout):
            return None
        try:
            attempt = self._breaker.attempt(monotonic() + 1.5 * self._timeout + _SLACK)
            if attempt is None:
                return None
            try:
                with self.in_use:
                    reply = command()
            except Exception as error:
                if not _is_of_another_type(error):
                    attempt.fail()
                    self.was_reached = False
                    self._log_failure(error)
                    return None
                reply = _UNREADABLE
            attempt.succeed()
            self.was_reached = True
            if self._outage.record_success():
                logger.info(
                    "the shared cache at %s works again", self.where, event="cache_used_again"
                )
            return reply
        finally:
            self._places.release()

    def _log_failure(self, error: Exception) -> None:
        # By its type alone: its message may hold what was sent or received.
        if (rest := self.rest) and self._outage.record_failure():
            kind = type(error).__name__
            logger.warning(
                "the shared cache at %s is not used for %g s: %s",
                self.where,
                round(rest, 1),
                kind,
                event="cache_left_alone",
                seconds=round(rest, 1),
                error=kind,
            )


_UNREADABLE: Final = object()


def _is_of_another_type(error: Exception) -> bool:
    """Whether Redis says that the value is a list or the like: it works, and the value is none of ours."""
    return str(error).startswith("WRONGTYPE")


def _name(key: str) -> str:
    return f"qtm:{FORMAT}:{key}"


def encode(transformation: Transformation) -> bytes | None:
    """*transformation* as compact JSON of what is not empty; ``None`` where it is beyond what `decode` reads.

    UTF-8 with lone surrogates written as they are: as JSON escapes two of them would come back as
    one character.
    """
    held: dict[str, Any] = {"v": FORMAT}
    for name in (*TEXT_FIELDS, "notes"):
        value = getattr(transformation, name)
        if value is not None and value != ():
            held[name] = value
    if any(len(value) > MAX_ITEMS for value in held.values() if isinstance(value, tuple)):
        return None
    written = json.dumps(held, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    return written if len(written) <= MAX_BYTES else None


def decode(written: bytes) -> Transformation | None:
    """The transformation that `encode` wrote as *written*; ``None`` for anything it would not have written so.

    At most `MAX_BYTES` are read, and `MAX_ITEMS` in a list.
    """
    if len(written) > MAX_BYTES:
        return None
    try:
        transformation = _read_fields(json.loads(written.decode("utf-8", "surrogatepass")))
        return (
            transformation
            if transformation is not None and encode(transformation) == written
            else None
        )
    except (ValueError, RecursionError):
        return None


def _read_fields(held: Any) -> Transformation | None:
    if not isinstance(held, dict):
        return None
    texts: dict[str, Any] = {}
    for name, row in TEXT_FIELDS.items():
        value = held.get(name, NOTHING)
        if value is NOTHING:
            continue
        if not (_are_texts(value) if row.shape == "list" else isinstance(value, str)):
            return None
        texts[name] = tuple(value) if row.shape == "list" else value
    notes = held.get("notes", [])
    if not isinstance(notes, list) or not all(
        _are_texts(note) and len(note) == 2 for note in notes
    ):
        return None
    # The format's number and unknown names are not looked at: written again, they would be other
    # bytes.
    return Transformation(**texts, notes=tuple((field, what) for field, what in notes))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
