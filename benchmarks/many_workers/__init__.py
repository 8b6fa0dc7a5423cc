"""The recipe for many workers under load, and on its bad days."""
