"""``qtm mcp``: offer the user's function or the index to agents as a search tool."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from qtmiddleware.kit.cli.environment import load_dotenv_file
from qtmiddleware.kit.cli.options import TARGET, Arguments, ConfigFile, Port, Sets
from qtmiddleware.kit.cli.output import write_note
from qtmiddleware.kit.mcp.server import SECONDS, build_server, refuse_streams, require_mcp
from qtmiddleware.kit.mcp.stdio import Stdio, reserve_stdio, serve_stdio

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from qtmiddleware.kit.mcp.server import AgentTool

Closing = Callable[[], Awaitable[None]]

_HTTP_PORT: Final = 8766
"""The default port with ``--http``. If this port is taken, a free port is used."""
_HTTP_PATH: Final = "/mcp"


def command(
    function: Annotated[
        str | None,
        Argument(metavar=TARGET, help="Your function. Default: the search of the index."),
    ] = None,
    fetch: Annotated[
        str | None, Option(metavar=TARGET, help="Function that returns a document by its id.")
    ] = None,
    name: Annotated[str, Option(help="What is searched, such as 'the staff handbook'.")] = "",
    about: Annotated[str, Option(help="One sentence on what the collection holds.")] = "",
    field: Annotated[
        list[str] | None, Option(help="Metadata field that each result shows. Repeatable.")
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    arguments: Arguments = None,
    folder: Annotated[
        Path | None,
        Option(file_okay=False, exists=True, help="Folder to run in. Default: this folder."),
    ] = None,
    timeout: Annotated[
        float, Option(min=0.1, max=3_600, help="Seconds after which a call is stopped.")
    ] = SECONDS,
    http: Annotated[
        bool, Option("--http", help="Serve over HTTP instead of stdin and stdout.")
    ] = False,
    port: Port = None,
) -> None:
    """Serve your search to agents.

    The server speaks the Model Context Protocol (MCP) over stdin and stdout, or
    with --http over HTTP to this machine only. Agents get the tool 'search', and
    with --fetch the tool 'fetch'. Both only read. What your function prints goes
    to stderr.
    """
    from qtmiddleware.kit.cli.searching import import_function, open_search, parse_arguments

    require_mcp()
    if sys.stdin.isatty() and not http:
        write_note("Waiting for a client's messages on stdin. Press Ctrl-C to stop.")
    with reserve_stdio() as stdio, redirect_stdout(sys.stderr):
        if folder is not None:
            # The .env file of the first folder was read at the start of qtm.
            os.chdir(folder)
            load_dotenv_file()
        load_document = None if fetch is None else import_function(fetch)
        collection = name or function or "the index"
        with open_search(function, config, sets) as search:
            tool = search.wrapped.as_tool(
                collection=collection,
                about=about,
                fields=field or (),
                arguments=parse_arguments(arguments),
            )
            tools: list[AgentTool] = [tool]
            if load_document is not None:
                from qtmiddleware.kit.mcp.fetch_tool import FetchTool

                tools.append(FetchTool(load_document, collection=collection))
            close = search.wrapped.middleware.aclose
            server = build_server(tools, name=collection, about=about, timeout_seconds=timeout)
            if http:
                _serve_http(server, port, stdio, close)
            else:
                asyncio.run(_serve_stdio(server, stdio, close))


async def _serve_stdio(server: Server[Any], stdio: Stdio, close: Closing) -> None:
    try:
        await serve_stdio(server, stdio)
    finally:
        await close()


def _serve_http(server: Server[Any], port: int | None, stdio: Stdio, close: Closing) -> None:
    from qtmiddleware.kit.playground.server import LOOPBACK, open_socket, serve_app

    # For the loopback address, the SDK refuses requests of other sites and to other hosts. Without
    # sessions, a client that disconnects uses no memory.
    application = server.streamable_http_app(
        streamable_http_path=_HTTP_PATH, stateless_http=True, host=LOOPBACK
    )
    with open_socket(port, default_port=_HTTP_PORT) as listener:
        address = f"http://{LOOPBACK}:{listener.getsockname()[1]}{_HTTP_PATH}\n"
        # stdout itself is redirected to stderr here.
        stdio.output_stream.write(address.encode())
        stdio.output_stream.flush()
        write_note("Press Ctrl-C to stop.")

        async def serve_and_close() -> None:
            try:
                await serve_app(refuse_streams(application), listener)
            finally:
                await close()

        asyncio.run(serve_and_close())
