"""The server of ``qtm mcp``: offers a wrapped function as a Model Context Protocol tool."""
