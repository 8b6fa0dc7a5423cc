"""How long a model may still take."""

from __future__ import annotations

from qtmiddleware.errors import ModelError
from qtmiddleware.types import Deadline


def time_left(deadline: Deadline, otherwise: str = "no time was left to ask the language model") -> float:
    """The seconds until *deadline*, infinite where there is none.

    Raises `ModelError` with the message *otherwise* where none are left: ``cancelled`` where nobody waits any more,
    else ``timeout``.
    """
    left = deadline.remaining()
    if left <= 0:
        # A deadline that was cancelled lies at the beginning of time.
        raise ModelError("timeout" if deadline.at > 0 else "cancelled", otherwise)
    return left
