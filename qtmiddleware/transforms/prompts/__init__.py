"""Define the built-in prompts.

There is one file per transform, with the transform's name in the catalogue.
"""
