"""What a reranker answered, checked before anything is ordered by it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from qtmiddleware.errors import ModelError


def checked_scores(scores: Any, count: int) -> list[float]:
    """*scores*, a list, tuple or array, as *count* finite floats.

    Raises `ModelError` ``unparsable`` where they are anything else: another number of them, NaN, texts, rows.
    """
    given = scores.tolist() if hasattr(scores, "tolist") else scores
    if isinstance(given, Sequence) and not isinstance(given, str | bytes) and len(given) == count:
        numbers = [number for score in given if (number := _number(score)) is not None]
        if len(numbers) == count:
            return numbers
    raise ModelError("unparsable", f"the reranker did not give one finite number for each of {count} passages")


def _number(score: Any) -> float | None:
    """*score* as a finite float, ``None`` where it is no such number."""
    if isinstance(score, str | bytes):
        return None
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
