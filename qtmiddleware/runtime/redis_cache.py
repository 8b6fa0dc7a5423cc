"""Cache transformed questions in Redis, so that several processes share them.

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
from qtmiddleware.runtime.forking import Draining, register_fork_reset
from qtmiddleware.runtime.logs import Outage, get_logger

logger: Final = get_logger("qtmiddleware")

FORMAT: Final = 2
"""The version of the stored format. It is part of every key, so no other version is ever read."""

MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1_024

_CONNECTIONS: Final = 32
_SLACK: Final = 0.1
"""A call that is late by up to this many seconds is not a failure: this process may be busy."""


class RedisCache:
    """A cache of transformations in Redis, shared by several processes.

    Connects on first use. Waits at most *timeout* seconds for Redis, and does not repeat calls.
    After a failure *breaker* stops all calls for a while. The methods never raise. Thread-safe; a
    forked process makes its own connections.

    Args:
        url: ``redis://host:6379/0``, ``rediss://host:6379/0?ssl_ca_certs=ca.pem`` for TLS, or
            ``unix:///path?db=0``. The user and the password are read from ``REDIS_USERNAME`` and
            ``REDIS_PASSWORD``.
        timeout: How many seconds to wait for Redis.
        ttl_seconds: How many seconds Redis keeps each transformation.
        breaker: Decides when to call Redis again after a failure.

    Attributes:
        where: The host and port, or the path of the socket.
        was_reached: Whether Redis answered the last call; ``None`` before the first call.

    Raises:
        ConfigError: The URL is not valid.
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
        self._outage = Outage(min_interval_seconds=0.0)
        self.reset_state()
        register_fork_reset(self)

    def __repr__(self) -> str:
        return f"RedisCache({self.where})"

    def reset_state(self) -> None:
        """Replace the client after a fork, because its connections belong to the parent process."""
        self._client = self._address.make_client(self._timeout)
        self._places = threading.BoundedSemaphore(_CONNECTIONS)

    @property
    def wait_seconds(self) -> float:
        """The number of seconds until Redis is called again; 0 if Redis can be called now."""
        return self._breaker.wait_seconds

    def get(
        self, key: str, is_acceptable: Callable[[Transformation], bool]
    ) -> Transformation | None:
        """Return the transformation stored under *key*; ``None`` if there is none or Redis fails.

        A value counts as missing if it cannot be read or *is_acceptable* returns false. The next
        `put` overwrites it.
        """
        name = _build_redis_key(key)

        def read_value() -> bytes:
            # One byte more than the limit, so that Redis never sends the rest of a larger value.
            value = self._client.getrange(name, 0, MAX_BYTES)
            if not isinstance(value, bytes):
                raise TypeError
            return value

        value = self._call_redis(read_value)
        if not value:
            return None
        transformation = decode_transformation(value) if isinstance(value, bytes) else None
        if transformation is None or transformation.is_empty or not is_acceptable(transformation):
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
        value = encode_transformation(transformation)
        if value is not None:
            self._call_redis(lambda: self._client.set(_build_redis_key(key), value, ex=self._ttl))

    def close(self) -> None:
        """Close the connections of this process. The next call opens new ones."""
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

    def _call_redis(self, command: Callable[[], Any]) -> Any:
        """Return the result of *command*; ``None`` if Redis fails, is late or is not called.

        Returns `_UNREADABLE` if another program stored a value of another type.
        """
        # With more calls than connections, calls wait for each other. A long wait is therefore not
        # a failure of Redis.
        if self.wait_seconds or not self._places.acquire(timeout=self._timeout):
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
                    attempt.report_failure()
                    self.was_reached = False
                    self._log_failure(error)
                    return None
                reply = _UNREADABLE
            attempt.report_success()
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
        if (wait_seconds := self.wait_seconds) and self._outage.record_failure():
            kind = type(error).__name__
            logger.warning(
                "the shared cache at %s is not used for %g s: %s",
                self.where,
                round(wait_seconds, 1),
                kind,
                event="cache_left_alone",
                seconds=round(wait_seconds, 1),
                error=kind,
            )


_UNREADABLE: Final = object()


def _is_wrong_type_error(error: Exception) -> bool:
    """Return whether Redis reports that the value has another type, such as a list.

    This is not an outage: another program stored the value.
    """
    return str(error).startswith("WRONGTYPE")


def _build_redis_key(cache_key: str) -> str:
    return f"qtm:{FORMAT}:{cache_key}"


def encode_transformation(transformation: Transformation) -> bytes | None:
    """Return *transformation* as compact JSON; ``None`` if it is too large to cache.

    Empty fields are omitted. Lone surrogates are not escaped, because two escaped surrogates would
    be decoded as one character.
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


def decode_transformation(json_bytes: bytes) -> Transformation | None:
    """Return the transformation that `encode_transformation` encoded as *json_bytes*.

    Returns ``None`` if `encode_transformation` cannot have returned *json_bytes*, for example if
    *json_bytes* has more than `MAX_BYTES` bytes or a list with more than `MAX_ITEMS` items.
    """
    if len(json_bytes) > MAX_BYTES:
        return None
    try:
        transformation = _read_fields(json.loads(json_bytes.decode("utf-8", "surrogatepass")))
        return (
            transformation
            if transformation is not None and encode_transformation(transformation) == json_bytes
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
        if not (_is_list_of_strings(value) if row.shape == "list" else isinstance(value, str)):
            return None
        texts[name] = tuple(value) if row.shape == "list" else value
    notes = fields.get("notes", [])
    if not isinstance(notes, list) or not all(
        _is_list_of_strings(note) and len(note) == 2 for note in notes
    ):
        return None
    # The version and unknown names need no check: `decode_transformation` encodes the result again
    # and compares the bytes.
    return Transformation(**texts, notes=tuple((field, note) for field, note in notes))


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
