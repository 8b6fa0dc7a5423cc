"""A wrapped retrieval function: the same signature, the same return type, better results."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, ParamSpec, TypeVar

from qtmiddleware.calls import CallShape
from qtmiddleware.drivers import arun, run
from qtmiddleware.errors import WrapError
from qtmiddleware.invocation import Invocation, Outfit, awaitable
from qtmiddleware.overrides import current_overrides, over
from qtmiddleware.pipeline import retrieve
from qtmiddleware.request import Request, conversation, validated
from qtmiddleware.settings import Settings
from qtmiddleware.types import Degradation, Retrieval

P = ParamSpec("P")
R = TypeVar("R")

logger: Final = logging.getLogger("qtmiddleware")


def is_off(settings: Settings) -> bool:
    """Whether nothing these settings ask for could change a result."""
    return (
        settings.transformation_type == "none"
        and not settings.keyword_evidence.enabled
        and (not settings.preprocess.enabled or settings.preprocess.apply_to == "keywords")
        and settings.log.path is None
    )


class Wrapped(Generic[P, R]):
    """A synchronous retrieval function with the middleware around it.

    Called, it takes and returns what the function does. `retrieve` and `aretrieve` return a `Retrieval` instead.
    """

    def __init__(self, fn: Callable[P, R], call_shape: CallShape, outfit: Outfit) -> None:
        self._fn = fn
        self._call_shape = call_shape
        self._outfit = outfit
        self._is_off = is_off(outfit.settings)
        self._takes_history = _has_parameter(fn, "history")
        functools.update_wrapper(self, fn)

    is_async = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns for these arguments, with better matches in it."""
        if self._is_off and current_overrides() is None:
            return self._fn(*args, **kwargs)
        return self._retrieved(args, kwargs, None, None).response  # type: ignore[no-any-return]

    def retrieve(
        self,
        *args: Any,
        history: Iterable[Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Retrieval:
        """What the function finds for these arguments, with the account of how it was found.

        *history* is the conversation so far, oldest first; *config* overrides settings for this call. Raises what the
        function itself raises, `InvalidQuery` for a query that cannot be searched and `ConfigError` for bad *config*.
        """
        return self._retrieved(args, self._with_history(kwargs, history), history, config)

    async def aretrieve(
        self,
        *args: Any,
        history: Iterable[Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Retrieval:
        """`retrieve` without blocking the running loop; a synchronous function runs in threads of our own."""
        request, call = self._request(args, self._with_history(kwargs, history), history, config)
        return self._finished(await arun(retrieve(request), call))

    def _with_history(self, kwargs: dict[str, Any], history: Iterable[Any] | None) -> dict[str, Any]:
        """*kwargs* with the history too, where the function has a parameter of that name."""
        return {**kwargs, "history": history} if self._takes_history and history is not None else kwargs

    def _retrieved(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        history: Iterable[Any] | None,
        config: Mapping[str, Any] | None,
    ) -> Retrieval:
        request, call = self._request(args, kwargs, history, config)
        return self._finished(run(retrieve(request), call))

    def _request(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        history: Iterable[Any] | None,
        config: Mapping[str, Any] | None,
    ) -> tuple[Request, Invocation]:
        outfit = self._outfit
        settings = self._settings(config)
        call_shape = self._call_shape
        original = validated(call_shape.query(args, kwargs), call_shape.argument, settings)
        request = Request(
            original=original,
            history=conversation(history),
            settings=settings,
            memory=outfit.memory,
            top_k=call_shape.top_k(args, kwargs),
            shape=outfit.shape,
            model=outfit.model.name if outfit.model is not None else "",
            embeds=outfit.embed is not None or outfit.aembed is not None,
        )
        call = Invocation(self._fn, call_shape, args, kwargs, original, outfit, native_async=self.is_async)
        return request, call

    def _settings(self, config: Mapping[str, Any] | None) -> Settings:
        overrides = current_overrides()
        if overrides is None and not config:
            return self._outfit.settings
        return self._outfit.configured(over(overrides or {}, config or {}))

    def _finished(self, retrieval: Retrieval) -> Retrieval:
        log = self._outfit.log
        if log is not None:
            try:
                log.write(retrieval)
            except Exception as error:
                trouble = Degradation("log", "failed", type(error).__name__)
                logger.warning("the query log could not be written: %s", type(error).__name__)
                retrieval = replace(retrieval, status="degraded", degradations=(*retrieval.degradations, trouble))
        if logger.isEnabledFor(logging.DEBUG):
            texts = [(it.kind, it.text) for it in retrieval.variants]
            logger.debug("query %s %r searched %s", retrieval.trace.query_id, retrieval.original_query, texts)
        return retrieval

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else Bound(self, instance)

    def __reduce__(self) -> str:
        # Like a function, it is pickled by its name.
        return self.__qualname__  # type: ignore[attr-defined, no-any-return]

    def __repr__(self) -> str:
        return f"<qtmiddleware around {getattr(self._fn, '__qualname__', type(self._fn).__name__)}>"


class AsyncWrapped(Wrapped[P, Coroutine[Any, Any, R]]):
    """An asynchronous retrieval function with the middleware around it; `retrieve` is `aretrieve` here."""

    is_async = True

    def __init__(self, fn: Callable[P, Coroutine[Any, Any, R]], call_shape: CallShape, outfit: Outfit) -> None:
        super().__init__(fn, call_shape, outfit)
        _mark_as_coroutine_function(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns for these arguments, with better matches in it."""
        if self._is_off and current_overrides() is None:
            return await awaitable(self._fn(*args, **kwargs))  # type: ignore[no-any-return]
        request, call = self._request(args, kwargs, None, None)
        return self._finished(await arun(retrieve(request), call)).response  # type: ignore[no-any-return]

    def retrieve(self, *_args: Any, **_kwargs: Any) -> Retrieval:
        """Refused: an asynchronous function cannot be waited for here."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....aretrieve(...)`")


class Bound:
    """A wrapped method together with the object it was looked up on."""

    def __init__(self, wrapped: Wrapped[..., Any], instance: Any) -> None:
        self.__self__ = instance
        self.__func__ = wrapped
        functools.update_wrapper(self, wrapped._fn)
        self.__wrapped__ = wrapped._fn.__get__(instance)
        if wrapped.is_async:
            _mark_as_coroutine_function(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped method on this object."""
        return self.__func__(self.__self__, *args, **kwargs)

    def retrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """`Wrapped.retrieve` on this object."""
        return self.__func__.retrieve(self.__self__, *args, **kwargs)

    async def aretrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """`Wrapped.aretrieve` on this object."""
        return await self.__func__.aretrieve(self.__self__, *args, **kwargs)


def _mark_as_coroutine_function(target: Any) -> None:
    """Let frameworks that ask (`inspect.iscoroutinefunction`, before 3.12 asyncio's) see that it must be awaited."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(target)
    else:
        import asyncio.coroutines

        target._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def _has_parameter(fn: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False
