"""Serve the playground, a local web page that compares the results of several configurations."""
