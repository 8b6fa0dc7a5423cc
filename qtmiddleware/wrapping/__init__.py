"""The decorator, the middleware, the wrapped function, signatures and the query log."""
