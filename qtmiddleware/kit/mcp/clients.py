"""The entry of this server in the config of each client."""

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
"""By client: the key of the servers in its config file, and where that file is."""


def build_entry(client: str, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return what to add to the config file of *client*.

    The server is called *name* there, and `qtm mcp serve` runs with *arguments*.
    """
    key, _ = CLIENTS[client]
    entry: dict[str, Any] = {"command": find_command(), "args": ["mcp", "serve", *arguments]}
    if client == "vscode":
        entry = {"type": "stdio", **entry}
    return {key: {name: entry}}


def find_command() -> str:
    """Return the path of ``qtm``; clients start servers outside of the active environment."""
    beside = Path(sys.executable).with_name("qtm")
    return str(beside) if beside.exists() else shutil.which("qtm") or "qtm"
