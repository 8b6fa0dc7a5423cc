"""The built-in prompts. Each file defines one transform and has the transform's catalogue name."""
