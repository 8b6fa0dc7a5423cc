"""The flow of a query and its stages: request, transform stage, variant search, shapes, fusion, evidence, gate."""
