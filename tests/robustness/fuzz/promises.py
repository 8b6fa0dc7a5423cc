"""What the targets share: their input as a text, and how a broken promise is told."""

from __future__ import annotations


class Broken(Exception):
    """A promise that does not hold."""


def check(holds: bool, promise: str) -> None:
    if not holds:
        raise Broken(promise)


def text_of(data: bytes) -> str:
    """The input as a text that may hold anything a string can, halves of characters too."""
    return data.decode("utf-8", "surrogateescape" if data[:1] == b"\xff" else "replace")
