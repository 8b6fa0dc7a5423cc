"""The flow of a query and its stages: request, model, searches, responses, fusion, evidence."""
