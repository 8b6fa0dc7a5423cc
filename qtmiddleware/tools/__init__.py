"""A wrapped function as an agent's tool: its arguments, its results, and how it fails."""
