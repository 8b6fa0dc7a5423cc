"""What is said where there is no answer and the model said nothing itself."""

from __future__ import annotations

from qtmiddleware.preprocessing import detect_language
from qtmiddleware.preprocessing.lexicon import load


def not_there(question: str) -> str:
    """One sentence that says the passages do not hold the answer, in the language of *question* where it is known."""
    return load(detect_language(question) or "en").no_answer
