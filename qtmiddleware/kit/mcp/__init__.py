"""Run the server of ``qtm mcp``, which offers a wrapped function to agents as a tool.

Agents call the tool over the Model Context Protocol (MCP).
"""
