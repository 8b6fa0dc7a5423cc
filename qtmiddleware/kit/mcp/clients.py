"""Builds the entry that starts the MCP server, for a client's config file."""

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


def build_entry(client: str, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the entry to add to the config file of *client*.

    The entry registers the server as *name* and starts it by `qtm mcp serve` with *arguments*.
    """
    key, _ = CLIENTS[client]
    entry: dict[str, Any] = {"command": find_command(), "args": ["mcp", "serve", *arguments]}
    if client == "vscode":
        entry = {"type": "stdio", **entry}
    return {key: {name: entry}}


def find_command() -> str:
    """Return the path of the command ``qtm``, for the config file of a client.

    The path is needed because clients start servers outside the active environment.
    """
    beside = Path(sys.executable).with_name("qtm")
    return str(beside) if beside.exists() else shutil.which("qtm") or "qtm"
