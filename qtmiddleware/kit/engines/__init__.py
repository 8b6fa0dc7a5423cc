"""Engines perform batches of work in this process, in several processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from qtmiddleware.kit.engines.local import LocalEngine

B = TypeVar("B")
R = TypeVar("R")


class Engine(Protocol):
    """Performs batches of work in this process, in several, or on a Ray cluster."""

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """Yield the results of the function that *build* makes, in the order in which batches end.

        If the function raises, its exception is raised here and ends the run.

        Args:
            build: A picklable function that makes the work's function; called once per worker.
            batches: The arguments of the function, one batch per call. At most a few batches per
                worker are taken ahead. Results must carry their own keys, because the order is
                lost.
        """

    def close(self) -> None:
        """End the workers at once, even in the middle of a batch.

        The engine can be used again. Closing twice does no harm.
        """


__all__ = ["Engine", "LocalEngine"]
