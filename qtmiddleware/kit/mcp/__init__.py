"""The server behind ``qtm mcp``. It offers a wrapped function to agents as a tool.

Agents call the tool over the Model Context Protocol (MCP).
"""
