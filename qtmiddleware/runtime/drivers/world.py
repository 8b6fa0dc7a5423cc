"""What a driver performs a flow's steps with."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from qtmiddleware.errors import ModelError, WrapError
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.runtime.drivers.threads import Bulkhead
from qtmiddleware.runtime.steps import Ask, Rerank, Search


class World(Protocol):
    """The wrapped function, the embedding and the model of one call.

    *native_async* says that `asearch` and `aembed` may be awaited; otherwise the plain ones are called in threads.
    """

    @property
    def native_async(self) -> bool:
        """Whether the wrapped function is asynchronous."""

    @property
    def bulkhead(self) -> Bulkhead:
        """The threads for everything beside the original's own search."""

    @property
    def model(self) -> LanguageModel | None:
        """The language model, if one is configured."""

    def search(self, step: Search) -> Any:
        """The wrapped function's response to one text."""

    def asearch(self, step: Search) -> Awaitable[Any]:
        """The wrapped function's response to one text."""

    def embed(self, texts: Sequence[str]) -> Any:
        """A vector a text."""

    def aembed(self, texts: Sequence[str]) -> Awaitable[Any]:
        """A vector a text."""

    def rerank(self, step: Rerank) -> Any:
        """A score a text."""


class ModelOnly:
    """A world in which nothing can be searched: what a flow needs that asks the model alone."""

    __slots__ = ("bulkhead", "model")
    native_async = True

    def __init__(self, model: LanguageModel | None, bulkhead: Bulkhead | None = None) -> None:
        self.model = model
        self.bulkhead = bulkhead or Bulkhead()

    def search(self, step: Search) -> Any:
        """Refused."""
        raise WrapError(f"nothing is wrapped that could answer {type(step).__name__}")

    def embed(self, texts: Sequence[str]) -> Any:
        """Refused."""
        raise WrapError(f"nothing is wrapped that could embed {len(texts)} texts")

    def rerank(self, step: Rerank) -> Any:
        """Refused."""
        raise WrapError(f"nothing is wrapped that could rerank {len(step.texts)} texts")

    asearch = search
    aembed = embed


def model_of(step: Ask, world: World) -> LanguageModel:
    """The model that *step* is for; raises `ModelError` where there is none."""
    model = step.model or world.model
    if model is None:
        raise ModelError("unavailable", "no language model is configured")
    return model
