"""Offer a wrapped function to agents, over the Model Context Protocol (MCP)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.runtime.concurrency import run_in_thread
from qtmiddleware.tools.passages import format_json
from qtmiddleware.tools.search_tool import SearchTool, ToolFailure

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

SECONDS: Final = 30.0
"""The default time limit per tool call, in seconds. It stops a call that hangs."""


def require_mcp() -> None:
    """Raise `MissingExtra` if the MCP SDK is not installed."""
    if find_spec("mcp") is None:
        raise MissingExtra("mcp", "mcp")


def build_server(
    tool: SearchTool, *, name: str, about: str = "", timeout_seconds: float = SECONDS
) -> Server[Any]:
    """Return an MCP server that offers *tool*.

    Args:
        tool: The tool that agents can call.
        name: The server's name, which clients show.
        about: One sentence on the searched collection, which the model reads.
        timeout_seconds: The time limit per tool call, in seconds.
    """
    import mcp_types as types
    from mcp.server.lowlevel import Server

    listed = types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        annotations=types.ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True
        ),
    )

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[listed])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        failure = False
        try:
            if params.name != tool.name:
                raise ToolFailure(f"There is no such tool; the tool is {tool.name}.")
            text = await _call_tool(tool, params.arguments or {}, timeout_seconds)
        except ToolFailure as error:
            text, failure = format_json({"error": str(error)}), True
        # Only the text: a structured copy would use the agent's token budget twice.
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], is_error=failure)

    return Server(
        name,
        version=version_of("qtmiddleware"),
        instructions=about or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _call_tool(tool: SearchTool, arguments: Mapping[str, Any], timeout_seconds: float) -> str:
    # The call runs in a new task. The SDK cancels the current task again and again until the task
    # ends, so a search that cleans up could never finish in it.
    task = asyncio.create_task(tool.call(arguments))
    try:
        await asyncio.wait({task}, timeout=timeout_seconds)
        if task.done():
            return task.result()
    finally:
        task.cancel()
    raise ToolFailure(f"{tool.name} gave no result within {timeout_seconds:g} seconds.")


def reserve_stdin() -> BinaryIO:
    """Return the standard input of this process. Other code finds an empty one from now on."""
    stream = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return stream


async def serve_stdio(server: Server[Any], messages: BinaryIO, output: int) -> None:
    """Answer the client's *messages* until the client disconnects. *output* is a descriptor."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def read_lines() -> AsyncIterator[str]:
        # In a daemon thread, which does not keep the process from ending.
        while line := await run_in_thread(messages.readline):
            yield line.decode("utf-8", "replace")

    lines: Any = read_lines()
    replies = anyio.wrap_file(os.fdopen(output, "w", encoding="utf-8", newline="\n", closefd=False))
    try:
        async with stdio_server(lines, replies) as (receiver, sender):
            await server.run(receiver, sender, server.create_initialization_options())
    # A client that leaves during a call no longer reads the reply.
    except* ConnectionError:
        pass
