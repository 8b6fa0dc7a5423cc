"""The built-in prompts: one file per transform of the catalogue, by its name."""
