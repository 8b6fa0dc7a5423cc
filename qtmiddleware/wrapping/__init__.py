"""What users put around their function: the decorator, the middleware, the wrapped function, signatures, query log."""
