"""The address of a Redis, and a client of it that tries everything once."""

from __future__ import annotations

import os
import re
from typing import Any, Final, NoReturn
from urllib.parse import SplitResult, parse_qsl, urlsplit

from qtmiddleware.errors import ConfigError, MissingExtra

PASSWORD_VARIABLE: Final = "REDIS_PASSWORD"
USER_VARIABLE: Final = "REDIS_USERNAME"
PATH: Final = "cache.redisUrl"
ALLOWED: Final = "redis://host:6379/0, rediss://host:6379/0?ssl_ca_certs=ca.pem, unix:///path?db=0"
_SECRET_OPTIONS: Final = frozenset({"username", "password", "ssl_password"})
_TLS_CHOICES: Final = {
    "ssl_cert_reqs": frozenset({"none", "optional", "required"}),
    "ssl_check_hostname": frozenset({"true", "false", "yes", "no", "1", "0"}),
}


class RedisAddress:
    """Where a Redis is: *url* for the client, *where* for people (host and port, or the socket's path).

    Raises `ConfigError`, which holds nothing of *url*, where it cannot be used or holds a user or a
    password.
    """

    __slots__ = ("_tls_checks", "url", "where")

    def __init__(self, url: str) -> None:
        if not re.match(r"(redis|rediss|unix)://", url) or not url.isprintable() or " " in url:
            _refuse("cache.redisUrl must be an address")
        try:
            parts = urlsplit(url)
            port = parts.port
            options = parse_qsl(
                parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
            )
        except ValueError:
            # The error may hold a part of a password.
            _refuse("cache.redisUrl must be an address that can be read")
        if "@" in parts.netloc or _SECRET_OPTIONS & {name for name, _ in options}:
            _refuse(
                f"cache.redisUrl must not hold a user name or password; set {USER_VARIABLE} and"
                f" {PASSWORD_VARIABLE}"
            )
        if not _is_complete(parts, port) or not all(
            _is_option(parts.scheme, *option) for option in options
        ):
            _refuse("cache.redisUrl must be an address that qtmiddleware can use")
        self.url = url
        self._tls_checks = _tls_checks(dict(options)) if parts.scheme == "rediss" else {}
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self.where = parts.path if parts.scheme == "unix" else f"{host}:{port or 6379}"

    def client(self, timeout: float) -> Any:
        """A client that is not connected yet, which waits *timeout* seconds for each step and tries none again.

        Raises `MissingExtra` without the ``redis`` package, and `ConfigError`.
        """
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise MissingExtra("redis", "redis") from error
        # By default it tells its own name and version first, and asks for another protocol: three
        # more round trips.
        silent = (
            {"driver_info": None}
            if hasattr(redis, "DriverInfo")
            else {"lib_name": None, "lib_version": None}
        )
        try:
            pool = redis.ConnectionPool.from_url(
                self.url,
                username=os.environ.get(USER_VARIABLE) or None,
                password=os.environ.get(PASSWORD_VARIABLE) or None,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
                protocol=2,
                **({} if self.url.startswith("unix") else {"socket_keepalive": True}),
                **self._tls_checks,
                **silent,
            )
            # Made and thrown away, unconnected: a mistake in the options of TLS shows here alone.
            pool.connection_class(**pool.connection_kwargs)
        except (redis.RedisError, TypeError, ValueError):
            _refuse("cache.redisUrl must be an address that qtmiddleware can use")
        return redis.Redis(connection_pool=pool)


def _is_complete(parts: SplitResult, port: int | None) -> bool:
    if parts.fragment:
        return False
    if parts.scheme == "unix":
        return not parts.netloc and len(parts.path) > 1
    return (
        bool(parts.hostname)
        and port != 0
        and re.fullmatch(r"(/\d{0,9})?", parts.path, re.ASCII) is not None
    )


def _is_option(scheme: str, name: str, value: str) -> bool:
    if name == "db":
        return re.fullmatch(r"\d{1,9}", value, re.ASCII) is not None
    # Some versions of the client look at these only when they connect.
    allowed = _TLS_CHOICES.get(name)
    return scheme == "rediss" and name.startswith("ssl_") and (allowed is None or value in allowed)


def _tls_checks(options: dict[str, str]) -> dict[str, Any]:
    """The checks of a certificate that the address does not set itself; before 6.0 the client looks at no host name."""
    is_checked = options.get("ssl_cert_reqs") != "none"
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": is_checked}


def _refuse(why: str) -> NoReturn:
    raise ConfigError(f"{why}; examples: {ALLOWED}", path=PATH, allowed=ALLOWED) from None
