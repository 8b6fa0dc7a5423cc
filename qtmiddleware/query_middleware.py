"""The middleware itself: a configuration, a language model, and the functions wrapped with them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from qtmiddleware.calls import CallShape, is_async
from qtmiddleware.config import Config
from qtmiddleware.drivers import arun, run
from qtmiddleware.errors import ConfigError, WrapError
from qtmiddleware.invocation import ModelOnly, Outfit
from qtmiddleware.llms import as_language_model
from qtmiddleware.lockstep import side_by_side
from qtmiddleware.overrides import current_overrides, over
from qtmiddleware.pipeline import Flow, transform
from qtmiddleware.ports import Embedder, LanguageModel
from qtmiddleware.preprocess import preprocess
from qtmiddleware.querylog import QueryLog
from qtmiddleware.request import Memory, Request, conversation, transformation_cache, validated
from qtmiddleware.responses import custom_shape
from qtmiddleware.settings import Settings
from qtmiddleware.types import Transformation
from qtmiddleware.wrapped import AsyncWrapped, Wrapped

P = ParamSpec("P")
R = TypeVar("R")
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None


class AskOptions(TypedDict, total=False):
    """The conversation so far, oldest first, and settings overridden for this call."""

    history: Iterable[Any] | None
    config: Mapping[str, Any] | None


class WrapOptions(TypedDict, total=False):
    """How a function is to be read.

    *query_arg* and *top_k_arg* name its parameters where the usual names are not used (``inputs.text`` reaches into a
    mapping). *embed* turns texts into vectors for a function that takes a vector: an embedder or a function of a list
    of texts. *read* takes the matches out of a response of an own shape and *write* puts others back in. *kind* is
    ``sync`` or ``async`` where that cannot be seen.
    """

    query_arg: str | None
    top_k_arg: str | None
    embed: Embedder | Callable[[Sequence[str]], Any] | None
    read: Callable[[Any], Sequence[Any]] | None
    write: Callable[[Any, Sequence[Any]], Any] | None
    kind: Literal["sync", "async"] | None


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
        self.model: LanguageModel = as_language_model(client, self.settings)
        log = self.settings.log
        self._log = QueryLog(log.path, query_text=log.query_text) if log.path else None
        self._memory = Memory(transformation_cache(self.settings))

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
            return type(fn)(self.wrap(fn.__func__, **options))
        awaits = _awaits(fn, options.get("kind"))
        embed = options.get("embed")
        call_shape = CallShape.of(
            fn,
            query_arg=options.get("query_arg"),
            top_k_arg=options.get("top_k_arg"),
            takes_vector=embed is not None,
        )
        outfit = self._outfit(awaits=awaits, embed=embed, read=options.get("read"), write=options.get("write"))
        return (AsyncWrapped if awaits else Wrapped)(fn, call_shape, outfit)

    def _outfit(self, *, awaits: bool, embed: Any, read: Any, write: Any) -> Outfit:
        if (read is None) != (write is None):
            raise WrapError("read and write belong together: one takes the matches out, the other puts them back")
        if not awaits and not getattr(self.model, "can_sync", True):
            raise ConfigError(
                "client is asynchronous and the wrapped function is not; pass openai.OpenAI() instead", path="client"
            )
        plain, awaited = _embedding(embed)
        if awaited is not None and not awaits:
            raise WrapError("embed is asynchronous and the wrapped function is not; give a synchronous embed")
        return Outfit(
            settings=self.settings,
            configured=self._configured,
            model=self.model,
            memory=Memory(self._memory.cache),
            shape=custom_shape(read, write) if read is not None else None,
            embed=plain,
            aembed=awaited,
            log=self._log,
        )

    def _configured(self, values: Mapping[str, Any]) -> Settings:
        return self.config.overridden(values).settings if values else self.settings

    def _effective(self, config: Mapping[str, Any] | None) -> Settings:
        return self._configured(over(current_overrides() or {}, config or {}))

    def preprocess(self, query: str) -> str:
        """The keywords of *query* under this configuration."""
        options = self._effective(None).preprocess
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
        if isinstance(query, str):
            return run(self._transforming(query, options), ModelOnly(self.model))
        return [made for batch in self._batches(query, options) for made in run(batch, ModelOnly(self.model))]

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
        if isinstance(query, str):
            return await arun(self._transforming(query, options), ModelOnly(self.model))
        return [made for batch in self._batches(query, options) for made in await arun(batch, ModelOnly(self.model))]

    def _transforming(self, query: str, options: AskOptions) -> Flow[Transformation]:
        settings = self._effective(options.get("config"))
        request = Request(
            original=validated(query, "query", settings),
            history=conversation(options.get("history")),
            settings=settings,
            memory=self._memory,
            model=self.model.name,
        )
        return transform(request)

    def _batches(self, queries: Sequence[str], options: AskOptions) -> Iterator[Flow[list[Transformation]]]:
        """As many questions at once as may be in flight; the time of a batch begins when it is made."""
        limit = self._effective(options.get("config")).limits.max_concurrency
        for start in range(0, len(queries), limit):
            flows = [self._transforming(query, options) for query in queries[start : start + limit]]
            yield side_by_side(flows, limit=limit)

    def close(self) -> None:
        """Close the clients this middleware made; those it was given stay open."""
        if hasattr(self.model, "close"):
            self.model.close()

    async def aclose(self) -> None:
        """`close` for the clients of the running loop too."""
        if hasattr(self.model, "aclose"):
            await self.model.aclose()

    def __enter__(self) -> QueryMiddleware:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> QueryMiddleware:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _awaits(fn: Any, kind: object) -> bool:
    if kind not in (None, "sync", "async"):
        raise WrapError(f"kind must be 'sync' or 'async', not {kind!r}")
    if not callable(fn):
        raise WrapError(f"{type(fn).__name__} is not callable; the middleware wraps functions")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise WrapError(
            f"{getattr(fn, '__name__', fn)} yields its results one by one; wrap a function that returns them"
        )
    return kind == "async" if kind else is_async(fn)


def _embedding(embed: Any) -> tuple[Any, Any]:
    """The synchronous and the asynchronous embedding of what the caller gave."""
    if embed is None:
        return None, None
    if isinstance(embed, Embedder):
        return embed.embed, None
    if callable(embed):
        return (None, embed) if is_async(embed) else (embed, None)
    raise WrapError(f"embed must be a function of a list of texts or an embedder, not {type(embed).__name__}")


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
