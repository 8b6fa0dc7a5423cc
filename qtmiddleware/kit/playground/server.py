"""Serve the playground's pages to this machine only."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.playground.page import Page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp

LOOPBACK: Final = "127.0.0.1"
"""The IP address at which only this machine can reach a server."""
PORT: Final = 8765
"""The default port of the playground. If the port is taken, the playground uses a free port."""
_MOST_HEAD_BYTES: Final = 1 << 20
"""The maximum size of a request's head. The address holds the question and the conversation."""


def require_web() -> None:
    """Raise `MissingExtra` if a package that renders or serves the page is missing."""
    for name in ("starlette", "uvicorn", "jinja2"):
        if find_spec(name) is None:
            raise MissingExtra(name, "cli")


def open_socket(port: int | None, *, default_port: int = PORT) -> socket.socket:
    """Return a socket that listens at *port* of the loopback address.

    If *port* is ``None``, the socket uses *default_port*, or a free port if another program uses
    the default port. Raises `ConfigError` if the socket cannot use *port*.
    """
    for candidate in (default_port, 0) if port is None else (port,):
        try:
            return socket.create_server((LOOPBACK, candidate))
        except OSError as error:
            reason = error.strerror
    message = (
        f"port {port or default_port} cannot be used: {reason}; leave --port out to use a free port"
    )
    raise ConfigError(message, path="--port", value=port)


def build_app(page: Page) -> Starlette:
    """Return the application that serves *page* at ``/``."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    route = Route("/", page.respond)
    static = Mount("/static", StaticFiles(packages=[(__package__, "static")]))
    # Anyone can point a host name of theirs to this machine.
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])
    return Starlette(routes=[route, static], middleware=[guard])


async def serve_app(app: ASGIApp, listener: socket.socket) -> None:
    """Serve *app* on the socket *listener* until Ctrl-C, without logging requests."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        timeout_graceful_shutdown=1,
    )
    await uvicorn.Server(config).serve(sockets=[listener])
