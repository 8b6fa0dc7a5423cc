"""A prompt, a way of asking, and an environment with a key and nothing else of the machine's own."""

from tests.support.llm_fixtures import ask, environment, hasty, make_prompt, prompt, wire

__all__ = ["ask", "environment", "hasty", "make_prompt", "prompt", "wire"]
