"""The middleware itself: a configuration, a language model, and the functions wrapped with them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from qtmiddleware.bound import WrappedClassMethod
from qtmiddleware.calls import CallShape
from qtmiddleware.config import Config
from qtmiddleware.drivers import arun, run
from qtmiddleware.equipment import Equipment
from qtmiddleware.errors import ConfigError, WrapError
from qtmiddleware.invocation import ModelOnly, Outfit
from qtmiddleware.lockstep import side_by_side
from qtmiddleware.overrides import Layers, current_overrides
from qtmiddleware.pipeline import Flow, transform
from qtmiddleware.ports import LanguageModel
from qtmiddleware.preprocessing import preprocess
from qtmiddleware.request import Memory, Request, conversation, transformation_cache, validated
from qtmiddleware.responses import custom_shape
from qtmiddleware.settings import Settings
from qtmiddleware.types import Transformation
from qtmiddleware.wrap_options import AskOptions, WrapOptions, awaits, embedding
from qtmiddleware.wrapped import AsyncWrapped, Wrapped

P = ParamSpec("P")
R = TypeVar("R")
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None


class Decorator(Protocol):
    """What `middleware(...)` with options returns: it wraps a function and keeps its signature."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWrapped[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Wrapped[P, R]: ...


class QueryMiddleware:
    """Makes the results of retrieval functions better, as its configuration says.

    *client* is the language model: an ``openai.OpenAI`` or ``AsyncOpenAI`` client, an object with ``complete`` and
    ``acomplete``, or any function of messages; without one a client is made when it is first needed, with the key and
    address from the environment. Safe with many threads and event loops.
    """

    def __init__(self, config: ConfigSource = None, *, client: Any = None) -> None:
        self.config = Config.load(config)
        self.settings = self.config.settings
        self._equipment = Equipment(self.config, client)
        # What is no model is refused here, not at the first question.
        self._equipment.model(self.settings)
        self._memory = Memory(transformation_cache(self.settings))

    @property
    def model(self) -> LanguageModel:
        """The language model of this middleware's own settings."""
        return self._equipment.model(self.settings)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, client: Any = None) -> QueryMiddleware:
        """A middleware configured by the file at *path*; raises `ConfigError` that names what is wrong in it."""
        return cls(Config.from_file(path), client=client)

    @overload
    def wrap(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[WrapOptions]
    ) -> AsyncWrapped[P, R]: ...
    @overload
    def wrap(self, fn: Callable[P, R], /, **options: Unpack[WrapOptions]) -> Wrapped[P, R]: ...

    def wrap(self, fn: Any, /, **options: Unpack[WrapOptions]) -> Any:
        """*fn* with the middleware around it: the same signature, the same return type and shape.

        *fn* may be a function, method, partial or callable object, synchronous or not; the options are those of
        `WrapOptions`. Raises `WrapError` where the query cannot be found in *fn*'s signature.
        """
        if isinstance(fn, classmethod | staticmethod):
            kind = WrappedClassMethod if isinstance(fn, classmethod) else staticmethod
            return kind(self.wrap(fn.__func__, **options))
        is_awaited = awaits(fn, options.get("kind"))
        embed = options.get("embed")
        call_shape = CallShape.of(
            fn,
            query_arg=options.get("query_arg"),
            top_k_arg=options.get("top_k_arg"),
            takes_vector=embed is not None,
        )
        outfit = self._outfit(awaits=is_awaited, embed=embed, read=options.get("read"), write=options.get("write"))
        return (AsyncWrapped if is_awaited else Wrapped)(fn, call_shape, outfit)

    def _outfit(self, *, awaits: bool, embed: Any, read: Any, write: Any) -> Outfit:
        if (read is None) != (write is None):
            raise WrapError("read and write belong together: one takes the matches out, the other puts them back")
        if not awaits and not getattr(self.model, "can_sync", True):
            raise ConfigError(
                "client is asynchronous and the wrapped function is not; pass openai.OpenAI() instead", path="client"
            )
        plain, awaited = embedding(embed)
        if awaited is not None and not awaits:
            raise WrapError("embed is asynchronous and the wrapped function is not; give a synchronous embed")
        return Outfit(
            settings=self.settings,
            changed=self._changed,
            model=self.model,
            memory=Memory(self._memory.cache),
            shape=custom_shape(read, write) if read is not None else None,
            embed=plain,
            aembed=awaited,
            log=self._equipment.log(self.settings),
        )

    def _changed(self, outfit: Outfit, layers: Layers) -> Outfit:
        equipment = self._equipment
        settings = equipment.settings(layers)
        return replace(outfit, settings=settings, model=equipment.model(settings), log=equipment.log(settings))

    def _effective(self, config: Mapping[str, Any] | None = None) -> Settings:
        layers = (*current_overrides(), config) if config else current_overrides()
        return self._equipment.settings(layers) if layers else self.settings

    def preprocess(self, query: str) -> str:
        """The keywords of *query* under this configuration."""
        options = self._effective().preprocess
        return preprocess(
            query, language=options.language, keep_words=options.keep_words, extra_words=options.extra_words
        )

    # A str is itself a Sequence[str], so the overloads overlap; the first one wins, as it should.
    @overload
    def transform(self, query: str, **options: Unpack[AskOptions]) -> Transformation: ...  # type: ignore[overload-overlap]
    @overload
    def transform(self, query: Sequence[str], **options: Unpack[AskOptions]) -> list[Transformation]: ...

    def transform(
        self, query: str | Sequence[str], **options: Unpack[AskOptions]
    ) -> Transformation | list[Transformation]:
        """What the model makes of *query*, or of each of a list of queries, in their number and order.

        What could not be had is empty, and ``notes`` says why; nothing is raised for it.
        """
        settings = self._effective(options.get("config"))
        world = ModelOnly(self._equipment.model(settings))
        if isinstance(query, str):
            return run(self._transforming(query, settings, options), world)
        return [made for batch in self._batches(query, settings, options) for made in run(batch, world)]

    @overload
    async def atransform(  # type: ignore[overload-overlap]
        self, query: str, **options: Unpack[AskOptions]
    ) -> Transformation: ...
    @overload
    async def atransform(self, query: Sequence[str], **options: Unpack[AskOptions]) -> list[Transformation]: ...

    async def atransform(
        self, query: str | Sequence[str], **options: Unpack[AskOptions]
    ) -> Transformation | list[Transformation]:
        """`transform` without blocking the running loop."""
        settings = self._effective(options.get("config"))
        world = ModelOnly(self._equipment.model(settings))
        if isinstance(query, str):
            return await arun(self._transforming(query, settings, options), world)
        return [made for batch in self._batches(query, settings, options) for made in await arun(batch, world)]

    def _transforming(self, query: str, settings: Settings, options: AskOptions) -> Flow[Transformation]:
        request = Request(
            original=validated(query, "query", settings),
            history=conversation(options.get("history")),
            settings=settings,
            memory=self._memory,
            model=self._equipment.model(settings).name,
        )
        return transform(request)

    def _batches(
        self, queries: Sequence[str], settings: Settings, options: AskOptions
    ) -> Iterator[Flow[list[Transformation]]]:
        """As many questions at once as may be in flight; the time of a batch begins when it is made."""
        # All of them before the first is asked: a bad one costs nothing.
        asked = [validated(query, "query", settings) for query in queries]
        limit = settings.limits.max_concurrency
        for start in range(0, len(asked), limit):
            flows = [self._transforming(query, settings, options) for query in asked[start : start + limit]]
            yield side_by_side(flows, limit=limit)

    def close(self) -> None:
        """Close the clients this middleware made; those it was given stay open."""
        self._equipment.close()

    async def aclose(self) -> None:
        """`close` for the clients of the running loop too."""
        await self._equipment.aclose()

    def __enter__(self) -> QueryMiddleware:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> QueryMiddleware:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@overload
def middleware(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWrapped[P, R]: ...
@overload
def middleware(fn: Callable[P, R], /) -> Wrapped[P, R]: ...
@overload
def middleware(
    fn: None = None, /, *, config: ConfigSource = ..., client: Any = ..., **options: Unpack[WrapOptions]
) -> Decorator: ...


def middleware(
    fn: Any = None, /, *, config: ConfigSource = None, client: Any = None, **options: Unpack[WrapOptions]
) -> Any:
    """Decorate a retrieval function, with or without parentheses.

    *config* is a file's path, a mapping, a `Config` or nothing, *client* as in `QueryMiddleware`, and the options are
    those of `WrapOptions`.
    """
    if fn is None:
        return functools.partial(middleware, config=config, client=client, **options)
    return QueryMiddleware(config, client=client).wrap(fn, **options)
