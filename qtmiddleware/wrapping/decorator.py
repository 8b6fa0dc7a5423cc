"""Define the `middleware` decorator, which wraps a function with a new `QueryMiddleware`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import WrapError
from qtmiddleware.wrapping.engine import MiddlewareOptions
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.query_middleware import (
    ConfigSource,
    QueryMiddleware,
    ReadOptions,
    WrapOptions,
)
from qtmiddleware.wrapping.wrapped import Wrapped

P = ParamSpec("P")
R = TypeVar("R")


class DecoratorOptions(ReadOptions, MiddlewareOptions, total=False):
    """The options of `middleware` except *embed* and *embed_many*."""

    config: ConfigSource


class EmbeddingDecoratorOptions(WrapOptions, DecoratorOptions, total=False):
    """The options of `middleware`."""


class Decorator(Protocol):
    """The type of the decorator that `middleware` returns when it is called with options.

    The decorated function keeps its signature.
    """

    def __call__(self, fn: Callable[P, R], /) -> Wrapped[P, R]:
        """Return *fn* wrapped with the middleware."""


class EmbeddingDecorator(Protocol):
    """The type of the decorator that `middleware` returns with *embed* or *embed_many*.

    The decorator wraps a function that takes a vector. Callers pass a text to the decorated
    function instead, so its parameter types change.
    """

    def __call__(self, fn: Callable[..., R], /) -> Wrapped[..., R]:
        """Return *fn* wrapped with the middleware."""


@overload
def middleware(fn: Callable[P, R], /) -> Wrapped[P, R]: ...
@overload
def middleware(fn: None = None, /, **options: Unpack[DecoratorOptions]) -> Decorator: ...
@overload
def middleware(
    fn: None = None, /, **options: Unpack[EmbeddingDecoratorOptions]
) -> EmbeddingDecorator: ...


def middleware(fn: Any = None, /, **options: Any) -> Any:
    """Wrap a retrieval function. Use ``@middleware`` with or without parentheses.

    The options are those of `QueryMiddleware` (*config*, *client*, *reranker*, *redact*,
    *observers*, *fuse*, *clock*, *cache*) and of `QueryMiddleware.wrap` (*query_arg*, *top_k_arg*,
    *page_arg*, *embed*, *embed_many*, *read*, *write*, *kind*, *on_retrieval*).

    Raises:
        WrapError: if an option is unknown, or if *fn* is not a function.
        ConfigError: for invalid settings.
    """
    check_options(middleware, options, EmbeddingDecoratorOptions.__optional_keys__)
    # `@middleware("auto")` passes the preset in place of the function.
    if isinstance(fn, str | os.PathLike | Mapping | Config | Settings):
        from qtmiddleware.config.errors import format_value

        written = format_value(fn) if isinstance(fn, str) else "..."
        raise WrapError(
            f"middleware() must be given a function, not {type(fn).__name__}; write"
            f" config={written}"
        )
    if fn is None:
        return functools.partial(middleware, **options)
    names = WrapOptions.__optional_keys__
    wrap_options: Any = {name: options.pop(name) for name in names & options.keys()}
    config = Config.load(options.pop("config", None), origin="decorator")
    return QueryMiddleware(config, **options).wrap(fn, **wrap_options)
