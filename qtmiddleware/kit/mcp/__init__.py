"""The server of ``qtm mcp``: a wrapped function as a tool of the Model Context Protocol."""
