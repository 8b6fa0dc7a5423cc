"""Retrieve the passages for a query: the flow from the request to the result, and its stages."""
