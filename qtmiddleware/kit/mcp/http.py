"""Serve MCP over HTTP. Every address except the loopback address requires a token."""

from __future__ import annotations

import hmac
import ipaddress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.playground.server import LOOPBACK, Guard, list_local_hosts

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Scope

PORT: Final = 8766
"""The default port of the server. If this port is taken, a free port is used."""
PATH: Final = "/mcp"
TOKEN: Final = "QTM_MCP_TOKEN"
"""The environment variable that holds the token."""
LEAST_CHARS: Final = 16
"""The minimum number of characters in a token."""


def read_token(environ: Any, host: str) -> str:
    """Return the token that clients must send, read from the environment variables *environ*.

    Returns ``""`` if no token is set and *host* is the loopback address.

    Raises:
        ConfigError: No token is set although *host* is not the loopback address, or the token is
            too short or has characters that a header does not allow.
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
    """Return the web application that passes allowed requests at `PATH` to *server*.

    The application keeps no sessions, so a disconnected client uses no memory.

    Args:
        server: The MCP server.
        host: The address at which the application listens.
        port: The port at which the application listens.
        token: The token that every request must contain; empty to require no token.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    # The guard below checks Host and Origin, so the SDK need not check them.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, transport_security=unchecked
    )
    return Guard(
        app, hosts=_list_allowed_hosts(host, port), find_problem=partial(_find_token_problem, token)
    )


def _list_allowed_hosts(host: str, port: int) -> list[str]:
    """Return the values that the header ``Host`` of a request may have.

    Returns an empty list, which allows every value, if *host* means every address of the machine.
    """
    if host == LOOPBACK:
        return list_local_hosts(port)
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return []
    except ValueError:
        pass  # A name, not a number.
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]


def _find_token_problem(token: str, scope: Scope) -> str:
    """Return an error message if the request lacks *token*, and ``""`` if the request may pass.

    Without a *token*, every request may pass. The comparison takes constant time, so that its
    duration does not reveal the token.
    """
    if not token:
        return ""
    authorizations = [value for name, value in scope["headers"] if name == b"authorization"]
    expected_value = b"Bearer " + token.encode()
    if len(authorizations) == 1 and hmac.compare_digest(authorizations[0], expected_value):
        return ""
    return f"The header Authorization must be 'Bearer' and the token of {TOKEN}."
