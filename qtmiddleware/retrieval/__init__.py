"""The flow of a query, from the request to the result, and the stages of this flow."""
