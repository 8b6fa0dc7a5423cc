"""Wrapped functions as tools for agents: their arguments, results and error messages."""
