"""``qtm mcp``: offer the user's function or the index to agents as a search tool."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.main import get_command

from qtmiddleware.kit.cli.check import (
    TARGET,
    Arguments,
    import_function,
    open_wrapped_function,
    parse_argument,
)
from qtmiddleware.kit.cli.console import ConfigFile, Sets, show_warnings
from qtmiddleware.kit.cli.environment import load_config, load_dotenv_file
from qtmiddleware.kit.cli.query import SHOWN_ANYWAY, open_middleware
from qtmiddleware.kit.cli.terminal import write_note
from qtmiddleware.kit.mcp.clients import CLIENTS, build_server_entry
from qtmiddleware.kit.mcp.server import SECONDS, build_server, require_mcp
from qtmiddleware.kit.mcp.stdio import Stdio, reserve_stdio, serve_stdio

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from qtmiddleware.kit.mcp.server import AgentTool

Closing = Callable[[], Awaitable[None]]


class _ServeByDefault(TyperGroup):
    """A command group that runs ``qtm mcp app:search`` as ``qtm mcp serve app:search``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, "-h", "--help"}:
            args = ["serve", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ServeByDefault, help="Serve your search to agents.")


@app.callback()
def group_mcp_commands() -> None:
    """Serve your search to agents by the Model Context Protocol (MCP).

    'qtm mcp app:search' is short for 'qtm mcp serve app:search'.
    """


@app.command("serve")
def serve_command(
    function: Annotated[
        str | None,
        typer.Argument(metavar=TARGET, help="Your function. Default: the search of the index."),
    ] = None,
    fetch: Annotated[
        str | None,
        typer.Option(metavar=TARGET, help="Function that returns a document by its id."),
    ] = None,
    name: Annotated[str, typer.Option(help="What is searched, such as 'the staff handbook'.")] = "",
    about: Annotated[str, typer.Option(help="One sentence on what the collection holds.")] = "",
    field: Annotated[
        list[str] | None,
        typer.Option(help="Metadata field that each result shows. Repeatable."),
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    arguments: Arguments = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, exists=True, help="Folder to run in. Default: the current folder."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3_600, help="Seconds after which a call is stopped.")
    ] = SECONDS,
    http: Annotated[
        bool, typer.Option("--http", help="Serve over HTTP instead of stdin and stdout.")
    ] = False,
    host: Annotated[
        str,
        typer.Option(help="With --http: address to listen at. All but 127.0.0.1 need a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="With --http: port. Default: 8766, or a free port."),
    ] = None,
) -> None:
    """Serve a search to agents.

    The server speaks over stdin and stdout, or with --http over HTTP. Agents get
    the tool 'search', and with --fetch the tool 'fetch'. Both only
    read. What your function prints goes to stderr.

    Set QTM_MCP_TOKEN to require that token over HTTP.
    """
    require_mcp()
    if sys.stdin.isatty() and not http:
        write_note("Waiting for a client's messages on stdin. Press Ctrl-C to stop.")
    with reserve_stdio() as stdio, redirect_stdout(sys.stderr):
        if folder is not None:
            # The .env file of the first folder was read at the start of qtm.
            os.chdir(folder)
            load_dotenv_file()
        load_document = None if fetch is None else import_function(fetch)
        arguments_by_name = dict(map(parse_argument, arguments or ()))
        collection = name or (function or "the index")
        with (
            show_warnings(hidden_degradations=SHOWN_ANYWAY),
            _open_search(function, config, sets) as search,
        ):
            tool = search.as_tool(
                collection=collection, about=about, fields=field or (), arguments=arguments_by_name
            )
            tools: list[AgentTool] = [tool]
            if load_document is not None:
                from qtmiddleware.kit.mcp.fetch_tool import FetchTool

                tools.append(FetchTool(load_document, collection=collection))
            closing = search.middleware.aclose
            server = build_server(tools, name=collection, about=about, timeout_seconds=timeout)
            if http:
                _serve_http(server, host, port, stdio, closing)
            else:
                asyncio.run(_serve_stdio(server, stdio, closing))


@app.command("config", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def config_command(
    ctx: typer.Context,
    client: Annotated[
        Literal["claude", "cursor", "vscode"], typer.Option(help="Program that runs the agent.")
    ],
) -> None:
    """Print a client's config entry.

    It goes into the config file of the program that runs the agent.

    All other arguments are those of 'qtm mcp serve':
    qtm mcp config --client claude app:search --name 'the staff handbook'
    """
    arguments = list(ctx.args)
    # Wrong arguments fail here, and not later, when a client starts the server.
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    parameters = serve.make_context("qtm mcp serve", list(arguments)).params
    # A client may start the server in another folder.
    if parameters["folder"] is None:
        arguments += ["--folder", str(Path.cwd())]
    name = (parameters["function"] or "qtmiddleware").replace(":", "-")
    print(json.dumps(build_server_entry(client, name, arguments), indent=2))
    write_note(f"Add this to {CLIENTS[client][1]}.")


@contextmanager
def _open_search(
    function: str | None, config_name: str | None, assignments: list[str] | None
) -> Iterator[Any]:
    """Import and wrap the function that *function* names, and yield the wrapped function.

    If *function* is ``None``, yields the search of the index.
    """
    if function is None:
        loaded = load_config(config_name, assignments)
        with open_middleware(loaded, config_name) as middleware:
            yield middleware.retriever
        return
    with open_wrapped_function(import_function(function), config_name, assignments, {}) as wrapped:
        yield wrapped


async def _serve_stdio(server: Server[Any], stdio: Stdio, close: Closing) -> None:
    try:
        await serve_stdio(server, stdio)
    finally:
        await close()


def _serve_http(
    server: Server[Any], host: str, port: int | None, stdio: Stdio, close: Closing
) -> None:
    from qtmiddleware.kit.mcp.http import PATH, PORT, build_app, read_token
    from qtmiddleware.kit.playground.server import open_socket, serve_app

    token = read_token(os.environ, host)
    with open_socket(port, host=host, default_port=PORT) as listener:
        used_port = listener.getsockname()[1]
        shown_host = f"[{host}]" if ":" in host else host
        # stdout itself is redirected to stderr here.
        stdio.output_stream.write(f"http://{shown_host}:{used_port}{PATH}\n".encode())
        stdio.output_stream.flush()
        write_note("Press Ctrl-C to stop.")
        application = build_app(server, host=host, port=used_port, token=token)

        async def serve_and_close() -> None:
            try:
                await serve_app(application, listener)
            finally:
                await close()

        asyncio.run(serve_and_close())
