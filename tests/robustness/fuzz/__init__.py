"""Hostile text at length: how time grows with it, and what a coverage-guided search finds in what reads it."""
