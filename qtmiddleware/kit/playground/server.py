"""Serve the playground's page to this machine only, at a secret address.

The server refuses requests that other sites make in the browser.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.kit.playground.asked import PageState, is_follow_up_request
from qtmiddleware.kit.playground.cards import Card
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.types import Retrieval

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

logger: Final = get_logger("qtmiddleware.playground")

LOOPBACK: Final = "127.0.0.1"
"""The IP address at which only this machine can reach a server."""
PORT: Final = 8765
"""The default port of the playground. If the port is taken, the playground uses a free port."""
MOST_CONNECTIONS: Final = 64
"""The maximum number of open connections. A new connection then closes the oldest idle one."""
RUNS: Final = 4
"""The maximum number of questions that run at the same time, over all browser tabs."""
MOST_ADDRESS_BYTES: Final = 1 << 20
"""The maximum size of a request's head, in bytes.

The head has room for a question of 8,000 characters after a conversation of the same length.
"""
_POLICY: Final = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


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
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    message = (
        f"port {port or default_port} cannot be used: {reason}; leave --port out to use a free port"
    )
    raise ConfigError(message, path="--port", value=port)


def make_token() -> str:
    """Return a new random secret for the playground's address."""
    return secrets.token_urlsafe(24)


class Guard:
    """A web application that passes allowed requests to another application, and refuses the rest.

    - A request must name this machine as its host, because anyone can point another host name to
      this machine.
    - If a web page makes the request, the page must come from this server.
    - The address must begin with the secret token.
    """

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        """Guard the application *app*.

        Args:
            app: The application that answers allowed requests.
            port: The port of the server.
            token: The secret part of the address.
        """
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in (LOOPBACK, "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request, and add the security headers to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        if reason := self._find_refusal_reason(scope):
            await _send_refusal(reason, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _find_refusal_reason(self, scope: Scope) -> str:
        """Return the reason to refuse a request; empty if the request is allowed."""
        headers = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return f"This server answers only at {min(self._hosts).decode()}."
        # Browsers send these two headers, and a page cannot change them.
        if any(value not in self._origins for name, value in headers if name == b"origin") or (
            any(
                value not in (b"none", b"same-origin")
                for name, value in headers
                if name == b"sec-fetch-site"
            )
            and not _is_opening_request(scope)
        ):
            return (
                "Another site requested this page, so it is not shown. Copy the address to the"
                " address bar."
            )
        return _find_address_problem(self._token, scope)


def _find_address_problem(token: str, scope: Scope) -> str:
    """Return an error message if a request's address does not begin with *token*, else ``""``.

    The comparison takes constant time, so that its duration does not reveal the token.
    """
    # A request to the server as a whole, such as OPTIONS *, has no path.
    address_token = "".join(scope["path"].split("/", 2)[1:2]).encode("utf-8", "surrogateescape")
    if hmac.compare_digest(address_token, token.encode()):
        return ""
    return (
        "This address is not the one that `qtm playground` printed. The address changes at"
        " each start: use the newest one, and append the part of this one after the ?."
    )


def _is_opening_request(scope: Scope) -> bool:
    """Return whether a request opens the page in a browser without asking a question.

    Such a request may come from another page: ``qtm playground`` opens a local file that redirects
    the browser to the playground.
    """
    headers = dict(scope["headers"])
    is_navigation = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == (
        b"navigate",
        b"document",
    )
    return is_navigation and scope["method"] == "GET" and not scope["query_string"]


async def _send_refusal(reason: str, send: Callable[[Any], Awaitable[None]]) -> None:
    """Send a response with status 403 and *reason* as its text."""
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-security-policy", b"default-src 'none'"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})


class Server:
    """The web application that serves the playground's page.

    Attributes:
        app: The guarded application.
    """

    def __init__(
        self,
        page: Page,
        *,
        token: str,
        port: int,
        close: Callable[[], Awaitable[None]] | None = None,
        other_pages: Mapping[str, Page] | None = None,
    ) -> None:
        """Set up the application.

        Args:
            page: The page at ``/<token>/``.
            token: The secret part of the address.
            port: The port of the server.
            close: An async function to call when the server ends, or ``None``.
            other_pages: Further pages by name. A page's address is ``/<token>/<name>/``.

        Raises:
            MissingExtra: starlette is not installed.
        """
        require_web()
        from starlette.applications import Starlette
        from starlette.routing import Route

        @asynccontextmanager
        async def close_at_end(_: Any) -> AsyncIterator[None]:
            yield
            if close is not None:
                await close()

        self._run_slots = asyncio.Semaphore(RUNS)
        pages = {f"/{token}/": page} | {
            f"/{token}/{name}/": other for name, other in (other_pages or {}).items()
        }
        routes = [
            Route(path, partial(self._answer_request, served_page), methods=["GET"])
            for path, served_page in pages.items()
        ]
        self.app = Guard(Starlette(routes=routes, lifespan=close_at_end), port=port, token=token)

    async def _answer_request(self, page: Page, request: Request) -> Response:
        """Return *page* for *request*, or a redirect to the shortest equivalent address."""
        from starlette.responses import RedirectResponse

        tiers = page.tiers
        parameters = request.query_params.multi_items()
        state = PageState.from_parameters(parameters, tiers.names, tiers.shown)
        if is_follow_up_request(parameters):
            return RedirectResponse(state.build_follow_up().format_query_string(tiers.shown), 303)
        # A form also sends its blank fields; redirect to the address without them.
        if not state.problems and parameters != state.list_parameters(tiers.shown):
            return RedirectResponse(state.format_query_string(tiers.shown), 303)
        # The policy allows only the page's own script and style, which carry this nonce.
        nonce = secrets.token_urlsafe(16)
        headers = {"content-security-policy": _POLICY.format(nonce=nonce)}
        return _make_streaming_response(self._stream_page(page, state, nonce), headers)

    async def _stream_page(
        self, page: Page, state: PageState, nonce: str
    ) -> AsyncGenerator[str, None]:
        """Yield the HTML of *page* in pieces: the head, each tier's result when ready, and the end.

        *nonce* allows the page's own script and style.
        """
        is_running = bool(state.question.strip())
        yield page.render_head(state, nonce, is_running=is_running)
        if is_running:
            cards: list[Card] = []
            baseline: Retrieval | None = None
            problem = ""
            # A closed tab ends the generator, and `aclosing` then cancels the tiers that still run.
            async with self._run_slots, aclosing(page.tiers.ask_tiers(state)) as answers:
                try:
                    async for answer in answers:
                        if answer.tier.name == BASELINE:
                            baseline = answer.retrieval
                        cards.append(page.make_card(answer, state, baseline))
                        yield page.render_card(cards[-1])
                except ConfigError as error:
                    problem = str(error)
                except Exception as error:
                    # Say so and finish the page, because half a page explains nothing.
                    problem = f"The page could not be made: {type(error).__name__}"
                    logger.debug(
                        "the page could not be made: %s", format_error(error), event="page_failed"
                    )
            yield page.render_tail(state, cards, problem)
        yield page.render_foot(is_running=is_running)


def _make_streaming_response(
    pieces: AsyncGenerator[str, None], headers: Mapping[str, str]
) -> Response:
    """Return a response that sends each of *pieces* as soon as the piece is ready.

    Closes *pieces* if the browser disconnects.
    """
    from starlette.responses import StreamingResponse

    class Stream(StreamingResponse):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
            sending = asyncio.ensure_future(self.stream_response(send))
            leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                sending.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await sending
                await pieces.aclose()

    return Stream(_encode_pieces(pieces), headers=dict(headers), media_type="text/html")


async def _encode_pieces(pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    # A text may contain lone surrogates, which UTF-8 cannot encode.
    async for piece in pieces:
        yield piece.encode("utf-8", "replace")


def _make_connection_class() -> Any:
    """Return a uvicorn protocol class that limits the number of open connections.

    At the limit, a new connection closes the oldest idle connection. Without the limit, another
    account on this machine could use up the server's connections.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    numbers = count()

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.number = next(numbers)
            super().connection_made(transport)
            # The server's own set has no order, and includes connections that are being closed.
            open_connections = [
                connection
                for connection in self.connections
                if isinstance(connection, Connection) and not connection.transport.is_closing()
            ]
            idle_connections = [
                connection
                for connection in open_connections
                if connection is not self and getattr(connection.cycle, "response_complete", True)
            ]
            if len(open_connections) > MOST_CONNECTIONS and idle_connections:
                min(idle_connections, key=attrgetter("number")).transport.abort()

    return Connection


async def serve_page(
    page: Page,
    listener: socket.socket,
    token: str,
    close: Callable[[], Awaitable[None]] | None,
    other_pages: Mapping[str, Page] | None = None,
) -> None:
    """Serve *page* and *other_pages* until Ctrl-C, without logging requests.

    Args:
        page: The page at the address without a name.
        listener: The socket on which the server listens.
        token: The secret part of the address.
        close: An async function to call when the server ends, or ``None``.
        other_pages: Further pages, by the name in the page's address.

    Raises:
        MissingExtra: uvicorn or starlette is not installed.
    """
    port = listener.getsockname()[1]
    server = Server(page, token=token, port=port, close=close, other_pages=other_pages)
    await serve_app(server.app, listener)


async def serve_app(app: ASGIApp, listener: socket.socket) -> None:
    """Serve *app* on the socket *listener* until Ctrl-C, without logging requests."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http=_make_connection_class(),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MOST_ADDRESS_BYTES,
        timeout_graceful_shutdown=1,
    )
    await uvicorn.Server(config).serve(sockets=[listener])
