"""Build the entry for a client's config file that starts the MCP server."""

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
"""The key for servers in each client's config file, and the path of the file, by client."""


def build_server_entry(client: str, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the entry to add to the config file of *client*.

    The entry registers the server as *name*, and starts it with ``qtm mcp serve`` and *arguments*.
    """
    key, _ = CLIENTS[client]
    entry: dict[str, Any] = {"command": find_qtm_command(), "args": ["mcp", "serve", *arguments]}
    if client == "vscode":
        entry = {"type": "stdio", **entry}
    return {key: {name: entry}}


def find_qtm_command() -> str:
    """Return the path of the command ``qtm``, for a client's config file.

    Clients start servers outside the active environment, so the name alone is not enough.
    """
    # The command in this environment comes first; another qtm may be first on the PATH.
    local_command = Path(sys.executable).with_name("qtm")
    return str(local_command) if local_command.exists() else shutil.which("qtm") or "qtm"
