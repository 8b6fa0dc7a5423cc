"""A wrapped function as a tool of an agent: what the tool takes, what it returns, and how it fails."""
