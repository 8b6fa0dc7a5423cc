"""Check the address of a Redis server, and make a client for it that never retries."""

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
    """A valid address of a Redis server.

    Raises `ConfigError` if the address is invalid or contains a user name or password. The error
    message does not show the address.

    Attributes:
        url: the complete address.
        where: the host and port, or the path of the socket, for messages.
    """

    __slots__ = ("url", "where")

    def __init__(self, url: str) -> None:
        if not re.match(r"(redis|rediss|unix)://", url) or not url.isprintable() or " " in url:
            _raise_address_error("cache.redisUrl must be an address")
        try:
            url_parts = urlsplit(url)
            port = url_parts.port
            options = parse_qsl(
                url_parts.query, keep_blank_values=True, strict_parsing=bool(url_parts.query)
            )
        except ValueError:
            # The error's message may contain a part of a password.
            _raise_address_error("cache.redisUrl must be an address that can be read")
        if "@" in url_parts.netloc or _SECRET_OPTIONS & {name for name, _ in options}:
            _raise_address_error(
                f"cache.redisUrl must not hold a user name or password; set {USER_VARIABLE} and"
                f" {PASSWORD_VARIABLE}"
            )
        if not _is_complete_address(url_parts, port) or not all(
            _is_valid_option(url_parts.scheme, *option) for option in options
        ):
            _raise_address_error("cache.redisUrl must be an address that qtmiddleware can use")
        self.url = url
        host = (
            f"[{url_parts.hostname}]" if ":" in (url_parts.hostname or "") else url_parts.hostname
        )
        self.where = url_parts.path if url_parts.scheme == "unix" else f"{host}:{port or 6379}"

    def make_client(self, timeout: float) -> Any:
        """Return a client that never retries. It is not connected yet.

        Args:
            timeout: How many seconds to wait for the connection, and for each reply.

        Raises:
            MissingExtra: The package ``redis`` is not installed.
            ConfigError: The package ``redis`` rejects the address.
        """
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise MissingExtra("redis", "redis") from error
        try:
            pool = redis.ConnectionPool.from_url(
                self.url,
                username=os.environ.get(USER_VARIABLE) or None,
                password=os.environ.get(PASSWORD_VARIABLE) or None,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
                # By default the client first sends its name and version, and asks for another
                # protocol: three more round trips.
                driver_info=None,
                protocol=2,
                **({} if self.url.startswith("unix") else {"socket_keepalive": True}),
            )
            # Creates a connection without connecting it, because only this checks the TLS options.
            pool.connection_class(**pool.connection_kwargs)
        except (redis.RedisError, TypeError, ValueError):
            _raise_address_error("cache.redisUrl must be an address that qtmiddleware can use")
        return redis.Redis(connection_pool=pool)


def _is_complete_address(url_parts: SplitResult, port: int | None) -> bool:
    """Return whether the address is complete.

    It must have a host or the path of a socket, and no fragment. After a host, the path may only be
    a database number.
    """
    if url_parts.fragment:
        return False
    if url_parts.scheme == "unix":
        return not url_parts.netloc and len(url_parts.path) > 1
    return (
        bool(url_parts.hostname)
        and port != 0
        and re.fullmatch(r"(/\d{0,9})?", url_parts.path, re.ASCII) is not None
    )


def _is_valid_option(scheme: str, name: str, value: str) -> bool:
    """Return whether an address with *scheme* may have the query option ``name=value``."""
    if name == "db":
        return re.fullmatch(r"\d{1,9}", value, re.ASCII) is not None
    # The client takes any other text for `true`.
    allowed = _TLS_CHOICES.get(name)
    return scheme == "rediss" and name.startswith("ssl_") and (allowed is None or value in allowed)


def _raise_address_error(problem: str) -> NoReturn:
    """Raise `ConfigError` with *problem* and examples of valid addresses.

    The message does not show the address, which may contain a password.
    """
    raise ConfigError(f"{problem}; examples: {ALLOWED}", path=PATH, allowed=ALLOWED) from None
