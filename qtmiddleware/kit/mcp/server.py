"""Build the MCP server that offers tools such as `search` and `fetch` to agents.

If a tool call fails, the server returns a sentence that explains the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from qtmiddleware.errors import MissingExtra
from qtmiddleware.tools.passages import build_failure_result
from qtmiddleware.tools.search_tool import ToolFailure

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

SECONDS: Final = 30.0
"""The default time limit per tool call, in seconds. It stops a call that hangs."""


class AgentTool(Protocol):
    """The interface of a tool that the MCP server offers to agents."""

    @property
    def name(self) -> str:
        """The tool's name, which the model reads."""

    @property
    def description(self) -> str:
        """The tool's description, which the model reads."""

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON schema of the tool's arguments."""

    def call(self, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, str]:
        """Call the tool with *arguments*, and return the result as text.

        Raises `ToolFailure`. The server then sends the error's message to the model.
        """


def require_mcp() -> None:
    """Raise `MissingExtra` if the MCP SDK is not installed."""
    if find_spec("mcp") is None:
        raise MissingExtra("mcp", "mcp")


def build_server(
    tools: Sequence[AgentTool], *, name: str, about: str = "", timeout_seconds: float = SECONDS
) -> Server[Any]:
    """Return an MCP server that offers *tools*.

    Args:
        tools: The tools that agents can call.
        name: The server's name, which clients show.
        about: One sentence on the searched collection, which the model reads.
        timeout_seconds: The time limit per tool call, in seconds.

    Raises:
        MissingExtra: The MCP SDK is not installed.
    """
    require_mcp()
    import mcp_types as types
    from mcp.server.lowlevel import Server

    by_name = {tool.name: tool for tool in tools}
    listed_tools = [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=tool.input_schema,
            annotations=types.ToolAnnotations(
                read_only_hint=True, destructive_hint=False, idempotent_hint=True
            ),
        )
        for tool in tools
    ]

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed_tools)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if (tool := by_name.get(params.name)) is None:
            tool_names = ", ".join(by_name)
            text, is_error = (
                build_failure_result(f"There is no such tool; the tools are {tool_names}."),
                True,
            )
        else:
            text, is_error = await _call_tool(tool, params.arguments or {}, timeout_seconds)
        # Only the text: a structured copy would use the agent's token budget twice.
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], is_error=is_error)

    return Server(
        name,
        version=version_of("qtmiddleware"),
        instructions=about or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def refuse_streams(app: ASGIApp) -> ASGIApp:
    """Return *app* with the answer 405 to GET, which asks for a stream of messages.

    A server without sessions has nothing to say on a stream, and each one would hold a connection.
    """
    from starlette.responses import PlainTextResponse

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        respond = app
        if scope["type"] == "http" and scope["method"] == "GET":
            respond = PlainTextResponse("Use POST.", 405, {"allow": "POST, DELETE"})
        await respond(scope, receive, send)

    return answer


_running: Final[set[asyncio.Task[str]]] = set()


async def _call_tool(
    tool: AgentTool, arguments: Mapping[str, Any], timeout_seconds: float
) -> tuple[str, bool]:
    """Call *tool*. Return the result or the error as text, and ``True`` if the call failed.

    Cancels the call after *timeout_seconds*, or if the client disconnects.
    """
    # The call runs in a new task. The SDK cancels the current task again and again until the task
    # ends, so a search that cleans up could never finish in it.
    task = asyncio.create_task(_call_without_exit(tool, arguments))
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        await asyncio.wait({task}, timeout=timeout_seconds)
    finally:
        is_late = not task.done()
        task.cancel()
    if is_late:
        return build_failure_result(
            f"{tool.name} gave no result within {timeout_seconds:g} seconds."
        ), True
    try:
        return task.result(), False
    except ToolFailure as failure:
        return build_failure_result(str(failure)), True


async def _call_without_exit(tool: AgentTool, arguments: Mapping[str, Any]) -> str:
    """Call *tool*. If its function ends the process, raise `RuntimeError` instead.

    An exit in a task would end the event loop, and with it the server for all clients.
    """
    try:
        return await tool.call(arguments)
    except SystemExit as error:
        raise RuntimeError("the function called sys.exit()") from error
