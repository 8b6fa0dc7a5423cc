"""Wrap retrieval functions: the decorator, the middleware, wrapped functions and the query log."""
