"""Offer wrapped functions to agents as tools."""
