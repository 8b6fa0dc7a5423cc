"""The server behind ``qtm mcp``. It offers a wrapped function as a tool to agents.

The agents call the tool by the Model Context Protocol (MCP).
"""
