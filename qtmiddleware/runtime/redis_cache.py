"""A cache of transformations in Redis that several processes share.

While Redis fails, the cache is not used.
"""

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
"""The number of the values' format; part of every key, so that another format is never read."""

MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1_024

_CONNECTIONS: Final = 32
_SLACK: Final = 0.1
"""How many seconds a busy process itself may be late before Redis counts as failing."""


class RedisCache:
    """A cache of transformations in Redis: one process can use replies that another process got.

    No wait for Redis is longer than *timeout*, and calls are not repeated. After a failure
    *breaker* stops all calls for a while, and every process works as it would without Redis.
    Connects on first use; a forked process makes its own connections. The methods never raise.
    Thread-safe.

    Args:
        url: ``redis://host:6379/0``, ``rediss://`` for TLS (options that begin with ``ssl_`` may
            follow, as ``?ssl_ca_certs=ca.pem``) or ``unix:///path?db=0``. The user and the password
            are read from ``REDIS_USERNAME`` and ``REDIS_PASSWORD``.
        timeout: How many seconds to wait for Redis.
        ttl_seconds: How many seconds each transformation is kept.
        breaker: Decides when Redis is called again after a failure.

    Attributes:
        where: Host and port, or the socket's path.
        was_reached: Whether Redis answered the last call; ``None`` before the first call.

    Raises:
        ConfigError: The address cannot be used.
        MissingExtra: The ``redis`` package is missing.
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
        """After a fork, replace all connections, which belong to the parent process."""
        self._client = self._address.client(self._timeout)
        self._places = threading.BoundedSemaphore(_CONNECTIONS)

    @property
    def rest(self) -> float:
        """The number of seconds until Redis may be called again; 0 if it may be called now."""
        return self._breaker.rest

    def get(self, key: str, accepts: Callable[[Transformation], bool]) -> Transformation | None:
        """Return the transformation stored under *key*; ``None`` if there is none or Redis fails.

        A value that cannot be read, or that *accepts* rejects, is treated as missing. The next
        `put` overwrites it.
        """
        name = _build_name(key)

        def read() -> bytes:
            # One byte more than the limit, so that Redis never sends the rest of a larger value.
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
        """Store *transformation* under *key*, unless it is too large."""
        value = encode(transformation)
        if value is not None:
            self._call(lambda: self._client.set(_build_name(key), value, ex=self._ttl))

    def close(self) -> None:
        """Close the connections of this process; the next call opens new ones."""
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
        """Return the result of *command*; ``None`` if Redis is late, fails, or is not called."""
        # If there are more calls than connections, calls wait for each other. That is no failure of
        # Redis.
        if self.rest or not self._places.acquire(timeout=self._timeout):
            return None
        try:
            attempt = self._breaker.begin_attempt(monotonic() + 1.5 * self._timeout + _SLACK)
            if attempt is None:
                return None
            try:
                with self.in_use:
                    reply = command()
            except Exception as error:
                if not _is_wrong_type_error(error):
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
        # Only the type is logged: the message may contain what was sent or received.
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


def _is_wrong_type_error(error: Exception) -> bool:
    """Return whether Redis says that the value has another type, such as a list.

    In this case Redis works, but another program wrote the value.
    """
    return str(error).startswith("WRONGTYPE")


def _build_name(key: str) -> str:
    return f"qtm:{FORMAT}:{key}"


def encode(transformation: Transformation) -> bytes | None:
    """Return *transformation* as compact JSON; ``None`` if it is too large for `decode`.

    Empty fields are omitted. The JSON is UTF-8 with unescaped lone surrogates: if they were
    escaped, two of them would be decoded as one character.
    """
    fields: dict[str, Any] = {"v": FORMAT}
    for name in (*TEXT_FIELDS, "notes"):
        value = getattr(transformation, name)
        if value is not None and value != ():
            fields[name] = value
    if any(len(value) > MAX_ITEMS for value in fields.values() if isinstance(value, tuple)):
        return None
    data = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    return data if len(data) <= MAX_BYTES else None


def decode(data: bytes) -> Transformation | None:
    """Return the transformation that `encode` wrote as *data*.

    Returns ``None`` for bytes that `encode` would not write, such as more than `MAX_BYTES` bytes or
    more than `MAX_ITEMS` items in a list.
    """
    if len(data) > MAX_BYTES:
        return None
    try:
        transformation = _read_fields(json.loads(data.decode("utf-8", "surrogatepass")))
        return (
            transformation
            if transformation is not None and encode(transformation) == data
            else None
        )
    except (ValueError, RecursionError):
        return None


def _read_fields(fields: Any) -> Transformation | None:
    if not isinstance(fields, dict):
        return None
    texts: dict[str, Any] = {}
    for name, row in TEXT_FIELDS.items():
        value = fields.get(name, NOTHING)
        if value is NOTHING:
            continue
        if not (_are_texts(value) if row.shape == "list" else isinstance(value, str)):
            return None
        texts[name] = tuple(value) if row.shape == "list" else value
    notes = fields.get("notes", [])
    if not isinstance(notes, list) or not all(
        _are_texts(note) and len(note) == 2 for note in notes
    ):
        return None
    # The format's number and unknown names need no check: `decode` encodes the result again and
    # compares the bytes.
    return Transformation(**texts, notes=tuple((field, note) for field, note in notes))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
