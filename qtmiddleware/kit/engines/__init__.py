"""Run batches of work in this process, in several processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from qtmiddleware.kit.engines.local import LocalEngine

B = TypeVar("B")
R = TypeVar("R")


class Engine(Protocol):
    """Runs batches of work in this process, in several processes, or on a Ray cluster."""

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """Yield the result of each batch, in the order in which the batches finish.

        If a batch fails, raises the batch's exception and ends the run.

        Args:
            build: Returns the function that processes a batch. Each worker calls *build* once.
                *build* must be picklable.
            batches: The batches. Only a few per worker are read in advance. Batches may finish in
                any order, so each result must identify its batch.
        """

    def close(self) -> None:
        """Stop the workers at once, even in the middle of a batch.

        You can use the engine again afterwards, and close it more than once.
        """


__all__ = ["Engine", "LocalEngine"]
