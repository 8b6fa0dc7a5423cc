"""The server behind ``qtm mcp``, which offers a wrapped function to agents as a tool.

Agents call the tool with the Model Context Protocol (MCP).
"""
