"""Embeds with any function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from qtmiddleware.embedders.vectors import checked_vectors
from qtmiddleware.errors import EmbeddingError


class CallableEmbedder:
    """Turns a function from texts to vectors into an embedder.

    *fn* takes a list of strings and returns one vector each: lists, tuples or numpy arrays (one array of two dimensions
    too). *name* stands beside an index made with it; by default the function's own name. *dimension* is learned from
    the first vectors where it is not given.

    What *fn* raises passes through unchanged. A wrong number of vectors, vectors of unequal length or something that is
    no finite number raise `EmbeddingError`, and so does an async function.
    """

    def __init__(
        self,
        fn: Callable[[list[str]], Sequence[Any]],
        *,
        name: str = "",
        dimension: int | None = None,
    ) -> None:
        self._fn = fn
        self._name = name or getattr(fn, "__qualname__", "") or type(fn).__qualname__
        self._dimension = dimension

    def __repr__(self) -> str:
        return f"CallableEmbedder(name={self._name!r}, dimension={self._dimension})"

    @property
    def name(self) -> str:
        """The name it was given, else that of the function."""
        return self._name

    @property
    def dimension(self) -> int:
        """The length of every vector; where it was not given, one word is embedded to learn it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    @property
    def can_async(self) -> bool:
        """Whether the function is async, and so cannot embed here."""
        return inspect.iscoroutinefunction(self._fn) or inspect.iscoroutinefunction(type(self._fn).__call__)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in the texts' order; raises `EmbeddingError` if the function is async."""
        if not texts:
            return []
        if self.can_async:
            raise EmbeddingError(f"{self._name} is async; give a plain function")
        made = self._fn(list(texts))
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise EmbeddingError(f"{self._name} returned an awaitable; give a plain function")
        return self._checked(made, len(texts))

    def _checked(self, made: Sequence[Any], count: int) -> list[list[float]]:
        """*made* as lists of floats, *count* of them, all of the one length."""
        vectors = checked_vectors(made, count, dimension=self._dimension, name=self._name)
        self._dimension = len(vectors[0])
        return vectors
