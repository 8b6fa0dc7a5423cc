"""What a driver performs a flow's steps with."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from qtmiddleware.errors import ModelError
from qtmiddleware.ports import LanguageModel
from qtmiddleware.steps import Ask, Rerank, Search


class World(Protocol):
    """The wrapped function, the embedding and the model of one call.

    *native_async* says that `asearch` and `aembed` may be awaited; otherwise the plain ones are called in threads.
    """

    @property
    def native_async(self) -> bool:
        """Whether the wrapped function is asynchronous."""

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


def model_of(step: Ask, world: World) -> LanguageModel:
    """The model that *step* is for; raises `ModelError` where there is none."""
    model = step.model or world.model
    if model is None:
        raise ModelError("unavailable", "no language model is configured")
    return model
