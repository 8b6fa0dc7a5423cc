"""The built-in prompts: one file per transform, with the transform's name in the catalogue."""
