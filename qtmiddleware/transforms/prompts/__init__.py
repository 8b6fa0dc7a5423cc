"""Define the built-in prompts: one file per transform, with the transform's catalogue name."""
