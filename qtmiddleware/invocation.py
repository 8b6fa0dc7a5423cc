"""One call of a wrapped function, made as often as the flow asks, each time with another text."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qtmiddleware.calls import CallShape
from qtmiddleware.drivers import in_thread
from qtmiddleware.errors import WrapError
from qtmiddleware.ports import LanguageModel
from qtmiddleware.querylog import QueryLog
from qtmiddleware.request import Memory
from qtmiddleware.responses import Shape, settled
from qtmiddleware.settings import Settings
from qtmiddleware.steps import Search

Vectors = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Outfit:
    """What a middleware gives to every function it wraps.

    *configured* answers the settings with some values overridden; it raises `ConfigError` where they are impossible.
    """

    settings: Settings
    configured: Callable[[Mapping[str, Any]], Settings]
    model: LanguageModel | None
    memory: Memory
    shape: Shape | None = None
    embed: Callable[[Sequence[str]], Vectors] | None = None
    aembed: Callable[[Sequence[str]], Awaitable[Vectors]] | None = None
    log: QueryLog | None = None


def awaitable(value: Any) -> Awaitable[Any]:
    """*value* itself where it can be awaited, else something that gives it.

    A wrapper may make an asynchronous function synchronous and still look like it.
    """
    return value if hasattr(value, "__await__") else _ready(value)


async def _ready(value: Any) -> Any:
    return value


class Invocation:
    """One call of the wrapped function, ready to be made again with other texts."""

    __slots__ = ("_args", "_call_shape", "_fn", "_kwargs", "_original", "_outfit", "model", "native_async")

    def __init__(
        self,
        fn: Callable[..., Any],
        call_shape: CallShape,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: str,
        outfit: Outfit,
        *,
        native_async: bool,
    ) -> None:
        self._fn = fn
        self._call_shape = call_shape
        self._args = args
        self._kwargs = kwargs
        self._original = original
        self._outfit = outfit
        self.model = outfit.model
        self.native_async = native_async

    @property
    def _embeds(self) -> bool:
        return self._outfit.embed is not None or self._outfit.aembed is not None

    def _made(self, step: Search, query: Any) -> Any:
        if step.top_k is None and query is self._original:
            return self._fn(*self._args, **self._kwargs)
        args, kwargs = self._call_shape.replaced(self._args, self._kwargs, query=query, top_k=step.top_k)
        return self._fn(*args, **kwargs)

    def search(self, step: Search) -> Any:
        """The function's response to one text."""
        query: Any = step.text
        if self._embeds:
            query = step.vector if step.vector is not None else self.embed((step.text,))[0]
        return settled(self._made(step, query))

    def asearch(self, step: Search) -> Awaitable[Any]:
        """The function's response to one text, to be awaited."""
        if self._embeds:
            return self._embedded_search(step)
        return awaitable(self._made(step, step.text))

    async def _embedded_search(self, step: Search) -> Any:
        vector = step.vector if step.vector is not None else (await self.aembed((step.text,)))[0]
        return await awaitable(self._made(step, vector))

    def embed(self, texts: Sequence[str]) -> Vectors:
        """A vector a text, in one batch."""
        if self._outfit.embed is None:
            raise WrapError("embed is asynchronous and the wrapped function is not; give a synchronous embed")
        return self._outfit.embed(texts)

    async def aembed(self, texts: Sequence[str]) -> Vectors:
        """A vector a text, in one batch; a synchronous embed runs in a thread."""
        if self._outfit.aembed is not None:
            return await self._outfit.aembed(texts)
        return await in_thread(functools.partial(self.embed, texts))


class ModelOnly:
    """A world in which nothing can be searched: what a flow needs that asks the model alone."""

    __slots__ = ("model",)
    native_async = True

    def __init__(self, model: LanguageModel | None) -> None:
        self.model = model

    def search(self, step: Search) -> Any:
        """Refused."""
        raise WrapError(f"nothing is wrapped that could answer {type(step).__name__}")

    def embed(self, texts: Sequence[str]) -> Any:
        """Refused."""
        raise WrapError(f"nothing is wrapped that could embed {len(texts)} texts")

    asearch = search
    aembed = embed
