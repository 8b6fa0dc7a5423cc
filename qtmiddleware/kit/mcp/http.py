"""Serves MCP over HTTP. A token is required, except on the loopback address."""

from __future__ import annotations

import hmac
import ipaddress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.playground.server import LOOPBACK, Guard, list_own_hosts

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Scope

PORT: Final = 8766
"""The default port of the server. If it is taken, a free port is used."""
PATH: Final = "/mcp"
TOKEN: Final = "QTM_MCP_TOKEN"
"""The environment variable that holds the token."""
LEAST_CHARS: Final = 16
"""The minimum number of characters of a token. A shorter token is refused."""


def read_token(environ: Any, host: str) -> str:
    """Return the token in *environ*.

    Returns ``""`` if there is no token and *host* is the loopback address. Raises `ConfigError` if
    another host has no token, or if the token is too short or has characters that are not allowed
    in a header.
    """
    token: str = environ.get(TOKEN, "")
    if not token and host == LOOPBACK:
        return ""
    if len(token) < LEAST_CHARS or not (token.isascii() and token.isprintable()) or " " in token:
        need = "the token" if token else f"--host {host} needs a token, which"
        raise ConfigError(
            f"{need} must be at least {LEAST_CHARS} characters of ASCII without spaces; set"
            f" {TOKEN}",
            path=TOKEN,
        )
    return token


def build_app(server: Server[Any], *, host: str, port: int, token: str) -> ASGIApp:
    """Return the web application that serves *server* at `PATH` to allowed requests.

    The application keeps no sessions, so a client that has disconnected uses no memory.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    # The guard checks Host and Origin.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, transport_security=unchecked
    )
    return Guard(app, hosts=_list_hosts(host, port), find_problem=partial(_check_token, token))


def _list_hosts(host: str, port: int) -> list[str]:
    """Return the host names, each with *port*, that a request may use.

    If *host* means every address of the machine, the list is empty, and any name is allowed.
    """
    if host == LOOPBACK:
        return list_own_hosts(port)
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return []
    except ValueError:
        pass
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]


def _check_token(token: str, scope: Scope) -> str:
    """Return an error message if the request does not contain *token*, else ``""``.

    If *token* is empty, every request is accepted. The tokens are compared in constant time.
    """
    if not token:
        return ""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    wanted = b"Bearer " + token.encode()
    if len(given) == 1 and hmac.compare_digest(given[0], wanted):
        return ""
    return f"The header Authorization must be 'Bearer' and the token of {TOKEN}."
