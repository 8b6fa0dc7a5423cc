"""``qtm mcp``: offer the user's function or the index to agents as a search tool."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument, Option

from qtmiddleware.kit.cli.environment import load_dotenv_file
from qtmiddleware.kit.cli.options import TARGET, Arguments, ConfigFile, Port, Sets
from qtmiddleware.kit.cli.output import divert_stdout, out, write_note
from qtmiddleware.kit.mcp import (
    SECONDS,
    build_server,
    require_mcp,
    reserve_stdin,
    serve_stdio,
)

_HTTP_PORT: Final = 8766
_HTTP_PATH: Final = "/mcp"


def command(
    function: Annotated[
        str | None,
        Argument(metavar=TARGET, help="Your function. Default: the search of the index."),
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
    with --http over HTTP to this machine only. Agents get the tool 'search', which
    only reads. What your function prints goes to stderr.
    """
    from qtmiddleware.kit.cli.searching import open_search, parse_arguments
    from qtmiddleware.kit.playground.server import LOOPBACK, open_socket, serve_app

    require_mcp()
    if sys.stdin.isatty() and not http:
        write_note("Waiting for a client's messages on stdin. Press Ctrl-C to stop.")
    divert_stdout()
    messages = reserve_stdin()
    if folder is not None:
        # The .env file of the first folder was read at the start of qtm.
        os.chdir(folder)
        load_dotenv_file()
    collection = name or function or "the index"
    with open_search(function, config, sets) as search:
        tool = search.wrapped.as_tool(
            collection=collection,
            about=about,
            fields=field or (),
            arguments=parse_arguments(arguments),
        )
        server = build_server(tool, name=collection, about=about, timeout_seconds=timeout)

        async def serve() -> None:
            try:
                if not http:
                    await serve_stdio(server, messages, out.file.fileno())
                    return
                # For the loopback address, the SDK refuses requests of other sites and to other
                # hosts. Without sessions, a client that disconnects uses no memory.
                app = server.streamable_http_app(
                    streamable_http_path=_HTTP_PATH, stateless_http=True, host=LOOPBACK
                )
                # A GET asks for a stream, on which a server without sessions has nothing to say.
                routes: list[Any] = app.routes
                for route in routes:
                    route.methods = {"POST", "DELETE"}
                with open_socket(port, default_port=_HTTP_PORT) as listener:
                    out.write(f"http://{LOOPBACK}:{listener.getsockname()[1]}{_HTTP_PATH}")
                    write_note("Press Ctrl-C to stop.")
                    await serve_app(app, listener)
            finally:
                await search.wrapped.middleware.aclose()

        asyncio.run(serve())
