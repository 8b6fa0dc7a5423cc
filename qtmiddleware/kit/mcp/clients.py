"""Build the entry in a client's config file with which the client starts the MCP server."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

CLIENTS: Final = {
    "claude": (
        "mcpServers",
        "claude_desktop_config.json of Claude Desktop, or .mcp.json of Claude Code",
    ),
    "cursor": ("mcpServers", ".cursor/mcp.json of your project, or ~/.cursor/mcp.json"),
    "vscode": ("servers", ".vscode/mcp.json of your project"),
}
"""The key for servers in each client's config file, and the path of the file."""


def build_server_entry(
    client_name: str, server_name: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Return the entry to add to the config file of an MCP client.

    Args:
        client_name: The name of the client, such as ``cursor``.
        server_name: The name under which the client lists the server.
        arguments: The arguments of ``qtm mcp serve``, which starts the server.
    """
    key, _ = CLIENTS[client_name]
    entry: dict[str, Any] = {"command": find_qtm_command(), "args": ["mcp", "serve", *arguments]}
    if client_name == "vscode":
        entry = {"type": "stdio", **entry}
    return {key: {server_name: entry}}


def find_qtm_command() -> str:
    """Return the path of the command ``qtm``, or ``qtm`` itself if the path is not found.

    A client's config file needs the path, because clients start servers outside the active
    Python environment.
    """
    # The command in this environment comes first; another qtm may be first on the PATH.
    local_command = Path(sys.executable).with_name("qtm")
    return str(local_command) if local_command.exists() else shutil.which("qtm") or "qtm"
