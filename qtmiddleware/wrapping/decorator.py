"""Define the `middleware` decorator, which wraps a function with a new `QueryMiddleware`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import WrapError
from qtmiddleware.protocols import Cache, Clock, FuseFunction, Observer
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.query_middleware import (
    ConfigSource,
    QueryMiddleware,
    ReadOptions,
    WrapOptions,
)
from qtmiddleware.wrapping.wrapped import AsyncWrapped, Wrapped

if TYPE_CHECKING:
    from qtmiddleware.wrapping.query_log import Redact

P = ParamSpec("P")
R = TypeVar("R")


class DecoratorOptions(ReadOptions, total=False):
    """The options of `middleware` except *embed* and *embed_many*."""

    config: ConfigSource
    client: Any
    reranker: Any
    redact: Redact | None
    observers: Sequence[Observer]
    fuse: FuseFunction | None
    clock: Clock | None
    cache: Cache | None


class EmbeddingDecoratorOptions(DecoratorOptions, total=False):
    """The options of `middleware`."""

    embed: Any
    embed_many: Any


class Decorator(Protocol):
    """The type of the decorator that `middleware` returns when it is called with options.

    The decorated function keeps its signature.
    """

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWrapped[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Wrapped[P, R]: ...


class EmbeddingDecorator(Protocol):
    """The type of the decorator that `middleware` returns with *embed* or *embed_many*.

    The decorator wraps a function that takes a vector. Callers pass a text to the decorated
    function instead, so its parameter types change.
    """

    @overload
    def __call__(self, fn: Callable[..., Coroutine[Any, Any, R]], /) -> AsyncWrapped[..., R]: ...
    @overload
    def __call__(self, fn: Callable[..., R], /) -> Wrapped[..., R]: ...


@overload
def middleware(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWrapped[P, R]: ...
@overload
def middleware(fn: Callable[P, R], /) -> Wrapped[P, R]: ...
@overload
def middleware(fn: None = None, /, **options: Unpack[DecoratorOptions]) -> Decorator: ...
@overload
def middleware(
    fn: None = None, /, **options: Unpack[EmbeddingDecoratorOptions]
) -> EmbeddingDecorator: ...


def middleware(
    fn: Any = None,
    /,
    *,
    config: ConfigSource = None,
    client: Any = None,
    reranker: Any = None,
    redact: Redact | None = None,
    observers: Sequence[Observer] = (),
    fuse: FuseFunction | None = None,
    clock: Clock | None = None,
    cache: Cache | None = None,
    **options: Unpack[WrapOptions],
) -> Any:
    """Wrap a retrieval function. Use ``@middleware`` with or without parentheses.

    *config* is a file's path, a preset's name, a mapping or a `Config`. By default, the settings
    come from the environment and the built-in defaults. *client*, *reranker*, *redact*,
    *observers*, *fuse*, *clock* and *cache* are passed to `QueryMiddleware`. All other options are
    passed to `QueryMiddleware.wrap`: *query_arg*, *top_k_arg*, *page_arg*, *embed*,
    *embed_many*, *read*, *write*, *kind* and *on_retrieval*.

    Raises:
        WrapError: if an option is unknown, or if *fn* is not a function.
    """
    check_options(middleware, options, WrapOptions.__optional_keys__)
    # `@middleware("auto")` passes the preset in place of the function.
    if isinstance(fn, str | os.PathLike | Mapping | Config | Settings):
        from qtmiddleware.config.errors import format_value

        written = format_value(fn) if isinstance(fn, str) else "..."
        raise WrapError(
            f"middleware() must be given a function, not {type(fn).__name__}; write"
            f" config={written}"
        )
    constructor_options: Any = {
        "client": client,
        "reranker": reranker,
        "redact": redact,
        "observers": observers,
        "fuse": fuse,
        "clock": clock,
        "cache": cache,
    }
    if fn is None:
        return functools.partial(middleware, config=config, **constructor_options, **options)
    return QueryMiddleware(Config.load(config, origin="decorator"), **constructor_options).wrap(
        fn, **options
    )
