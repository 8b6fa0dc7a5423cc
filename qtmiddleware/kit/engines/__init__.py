"""Where batches of work are done: in this process, in several of this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from qtmiddleware.kit.engines.local import LocalEngine

B = TypeVar("B")
R = TypeVar("R")


class Engine(Protocol):
    """Does batches of work in this process, in several, or on a Ray cluster."""

    def map(self, build: Callable[[], Callable[[B], R]], batches: Iterable[B]) -> Iterator[R]:
        """What the function that *build* makes returns for each of *batches*, as they are done, in any order.

        *build* is picklable and called once a worker; results carry their own keys. At most a few
        batches a worker are taken from *batches* ahead of what is done. What the function raises is
        raised here, and ends the run.
        """

    def close(self) -> None:
        """End the workers, and what they are at; the engine may be used again. Closing twice does no harm."""


__all__ = ["Engine", "LocalEngine"]
