"""Transformations that all processes share in Redis, which when it fails is left alone for a while."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from enum import Enum
from hashlib import sha1
from time import monotonic
from typing import Any, Final, TypeVar

from qtmiddleware.config.redis_address import RedisAddress
from qtmiddleware.runtime.cache.stored import FORMAT, MAX_BYTES, decode, encode
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.draining import Draining
from qtmiddleware.runtime.forking import renew_after_fork
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline, Transformation

logger: Final = get_logger("qtmiddleware")

_T = TypeVar("_T")
_CONNECTIONS: Final = 32
_SLACK: Final = 0.1
"""Seconds by which a busy process may be late itself before Redis is blamed."""
_PAUSES: Final = (0.002, 0.005, 0.01, 0.02)
_LONGEST_CLAIM: Final = 86_400.0

# Each script is one round trip, and nothing comes between its commands. KEYS: value, claim, damaged copy.
# ARGV: token, milliseconds, most bytes, SHA-1 of a value found unreadable. Gives the value, then 1 for claimed and for
# set aside. A value of another type or size is unreadable without a look.
_CLAIM: Final = """
local size, kept = redis.pcall('STRLEN', KEYS[1]), false
local odd = type(size) ~= 'number' or size > tonumber(ARGV[3])
if not odd then
  kept = redis.call('GET', KEYS[1])
  odd = kept and ARGV[4] ~= '' and redis.sha1hex(kept) == ARGV[4]
end
if odd then
  redis.call('RENAME', KEYS[1], KEYS[3])
elseif kept then
  return {kept, 0, 0}
end
local claimed = redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2])
return {false, claimed and 1 or 0, odd and 1 or 0}
"""
# ARGV: token, then for a value to keep: value, seconds. The claim is given up even where the value found no room.
_SETTLE: Final = """
local kept = 1
if ARGV[2] then kept = redis.pcall('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
if redis.pcall('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return kept
"""


Fits = Callable[[Transformation], bool]


def _anything(_: Transformation) -> bool:
    return True


class Claim(Enum):
    """Who asks the model where nothing is kept."""

    MINE = "mine"
    ELSEWHERE = "elsewhere"


class RedisCache:
    """Transformations kept in Redis for *ttl_seconds*, so that of all processes one asks the model and the rest read.

    *url* is ``redis://host:6379/0``, ``rediss://`` for TLS (options that begin with ``ssl_`` may follow, as
    ``?ssl_ca_certs=ca.pem``) or ``unix:///path?db=0``; user and password are read from ``REDIS_USERNAME`` and
    ``REDIS_PASSWORD``. No wait for Redis is longer than *timeout* seconds, nothing is tried twice, and after failures
    *breaker* lets no call through for a while; without Redis every process works as if it were alone. Raises
    `ConfigError` for an address that cannot be used and `MissingExtra` without the ``redis`` package; its methods
    never raise. Connects on first use; safe with many threads, and after a fork. *was_reached* is whether it answered
    when it was last asked, ``None`` before that; *where* is host and port, or the socket's path.
    """

    def __init__(self, url: str, *, timeout: float, ttl_seconds: int, breaker: Breaker) -> None:
        self._address = RedisAddress(url)
        self.where = self._address.where
        self.was_reached: bool | None = None
        self.in_use: Final = Draining(self.close)
        self._timeout = timeout
        self._ttl = ttl_seconds
        self._breaker = breaker
        self._claim_ms = 1
        self._is_told = False
        # By process, since sockets do not survive a fork; a parent's client stays in its place unused.
        self._by_process: dict[int, Any] = {}
        self.renew()
        renew_after_fork(self)
        self._client()

    def __repr__(self) -> str:
        return f"RedisCache({self.where})"

    def renew(self) -> None:
        """Begin anew in the process of a child, whose claims are its own."""
        self._token = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_CONNECTIONS)

    @property
    def rest(self) -> float:
        """For how many seconds Redis is left alone."""
        return self._breaker.rest

    @property
    def is_resting(self) -> bool:
        """Whether Redis failed lately and is left alone."""
        rests = self._breaker.rest > 0
        if rests and not self._is_told:
            self._tell_rest("no answer in time")
        return rests

    def claim(self, key: str, seconds: float, fits: Fits = _anything) -> Transformation | Claim:
        """What is kept under *key*, or who asks the model for it; a claim of ours ends after *seconds* by itself.

        `Claim.MINE` where Redis fails, too. A value that does not pass *fits* counts as damaged.
        """
        self._claim_ms = max(1, int(min(seconds, _LONGEST_CLAIM) * 1_000))
        return self._look(key, fits) or Claim.MINE

    def wait(self, key: str, deadline: Deadline, fits: Fits = _anything) -> Transformation | None:
        """What another process keeps under *key* until *deadline*; ``None`` is leave to ask the model oneself.

        Where the other gave up or died, the claim is ours then, as after `claim` and for as long.
        """
        polls = 0
        while not deadline.passed:
            found = self._look(key, fits)
            if isinstance(found, Transformation):
                return found
            if found is not Claim.ELSEWHERE:
                if deadline.passed:
                    # Who waited is gone: the claim would be held for nobody.
                    self.release(key)
                return None
            time.sleep(min(_PAUSES[min(polls, len(_PAUSES) - 1)], deadline.remaining()))
            polls += 1
        return None

    def keep(self, key: str, made: Transformation) -> None:
        """Keep *made* under *key* for all, and give our claim up; what is too large to be shared is not kept."""
        written = encode(made)
        self._settle(key, *(() if written is None else (written, self._ttl)))

    def release(self, key: str) -> None:
        """Give our claim on *key* up, since nothing came of it."""
        self._settle(key)

    def close(self) -> None:
        """Close the connections of this process; the next call makes others."""
        client = self._by_process.pop(os.getpid(), None)
        if client is not None:
            try:
                client.connection_pool.disconnect()
            except Exception as error:
                logger.debug("the connections to %s were not closed: %s", self.where, type(error).__name__)

    def _look(self, key: str, fits: Fits, unreadable: str = "") -> Transformation | Claim | None:
        """``None`` where Redis fails; a value with the SHA-1 *unreadable* is set aside first."""
        reply = self._ask(_CLAIM, key, self._token, self._claim_ms, MAX_BYTES, unreadable, read=_verdict)
        if reply is None:
            return None
        kept, is_mine, was_renamed = reply
        if was_renamed:
            name = _names(key)[0]
            logger.warning("%s of the shared cache at %s cannot be read; it is %s:corrupt now", name, self.where, name)
        if kept is None:
            return Claim.MINE if is_mine else Claim.ELSEWHERE
        made = decode(kept)
        if made is not None and not fits(made):
            made = None
        if made is None and not unreadable:
            return self._look(key, fits, sha1(kept, usedforsecurity=False).hexdigest())
        return made

    def _settle(self, key: str, *value: bytes | int) -> None:
        self._ask(_SETTLE, key, self._token, *value, read=lambda reply: reply)

    def _ask(self, script: str, key: str, *arguments: str | bytes | int, read: Callable[[Any], _T]) -> _T | None:
        # More calls at once than connections wait for one another: that is our own haste and no failure of Redis.
        if self.is_resting or not self._places.acquire(timeout=self._timeout):
            return None
        try:
            attempt = self._breaker.attempt(monotonic() + 1.5 * self._timeout + _SLACK)
            if attempt is None:
                return None
            try:
                names = _names(key)
                with self.in_use:
                    reply = read(self._client().eval(script, len(names), *names, *arguments))
            except Exception as error:
                # Its message may hold what was sent or received.
                attempt.failed()
                self.was_reached = False
                self._tell_rest(type(error).__name__)
                return None
            attempt.succeeded()
            self.was_reached = True
            if attempt.is_probe:
                self._tell_return()
            return reply
        finally:
            self._places.release()

    def _tell_rest(self, why: str) -> None:
        rest = self._breaker.rest
        with self._lock:
            if self._is_told or not rest:
                return
            self._is_told = True
        logger.warning("the shared cache at %s is left alone for %g s: %s", self.where, round(rest, 1), why)

    def _tell_return(self) -> None:
        with self._lock:
            if not self._is_told or self._breaker.rest:
                return
            self._is_told = False
        logger.info("the shared cache at %s is used again", self.where)

    def _client(self) -> Any:
        process = os.getpid()
        client = self._by_process.get(process)
        if client is None:
            client = self._by_process.setdefault(process, self._address.client(self._timeout))
        return client


def _names(key: str) -> tuple[str, str, str]:
    # Braces keep the three in one slot behind the proxy of a cluster.
    name = f"qtm:{FORMAT}:{{{key}}}"
    return name, f"{name}:claim", f"{name}:corrupt"


def _verdict(reply: Any) -> tuple[bytes | None, bool, bool]:
    kept, is_mine, was_renamed = reply
    if not (kept is None or isinstance(kept, bytes)):
        raise TypeError
    return kept, bool(is_mine), bool(was_renamed)
