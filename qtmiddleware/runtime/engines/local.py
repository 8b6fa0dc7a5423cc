"""Batches of work in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

B = TypeVar("B")
R = TypeVar("R")


class LocalEngine:
    """Does the work in this process, batch after batch."""

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """What the function that *build* makes returns for each of *batches*, in their order."""
        return map(build(), batches)

    def close(self) -> None:
        """Nothing is left to end."""
