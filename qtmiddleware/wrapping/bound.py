"""A wrapped method together with the object it was looked up on."""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from qtmiddleware.types import Answer, Retrieval

if TYPE_CHECKING:
    from qtmiddleware.rag.answering import AnswerStream, AsyncAnswerStream

P = ParamSpec("P")
R = TypeVar("R")


class Bound(Generic[P, R]):
    """What ``instance.method`` is for a wrapped method; equal to another look-up of the same one, as methods are."""

    def __init__(self, wrapped: Any, instance: Any) -> None:
        # First of all: on Python 3.12 and newer the mark would go to `__func__` once that is set.
        if wrapped.is_async:
            mark_as_coroutine_function(self)
        self.__self__ = instance
        self.__func__ = wrapped
        functools.update_wrapper(self, wrapped.__wrapped__, updated=())
        self.__wrapped__ = wrapped.__wrapped__.__get__(instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the wrapped method on this object."""
        return self.__func__(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def retrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """`Wrapped.retrieve` on this object."""
        return self.__func__.retrieve(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    async def aretrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """`Wrapped.aretrieve` on this object."""
        return await self.__func__.aretrieve(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def answer(self, *args: Any, **kwargs: Any) -> Answer:
        """`Wrapped.answer` on this object."""
        return self.__func__.answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    async def aanswer(self, *args: Any, **kwargs: Any) -> Answer:
        """`Wrapped.aanswer` on this object."""
        return await self.__func__.aanswer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def stream_answer(self, *args: Any, **kwargs: Any) -> AnswerStream:
        """`Wrapped.stream_answer` on this object."""
        return self.__func__.stream_answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def astream_answer(self, *args: Any, **kwargs: Any) -> AsyncAnswerStream:
        """`Wrapped.astream_answer` on this object."""
        return self.__func__.astream_answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.__func__, name)

    def __reduce__(self) -> Any:
        # As a plain method is: by its object and its name there, where that gives the same.
        name = getattr(self.__func__, "__name__", "")
        if getattr(self.__self__, name, None) == self:
            return getattr, (self.__self__, name)
        return Bound, (self.__func__, self.__self__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r}>"


class WrappedClassMethod(classmethod):  # type: ignore[type-arg]
    """A class method around a wrapped function, which keeps the methods of the wrapped function reachable.

    From Python 3.13 on a plain one no longer asks the function it holds how to be bound.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.__func__.__get__(type(instance) if owner is None else owner)


def binds(fn: Any) -> bool:
    """Whether *fn*, as a class attribute, would become a method: functions do, partials and objects do not."""
    return isinstance(fn, types.FunctionType) or hasattr(type(fn), "_is_qtmiddleware")


def mark_as_coroutine_function(target: Any) -> None:
    """Let frameworks that ask (`inspect.iscoroutinefunction`, before 3.12 asyncio's) see that it must be awaited."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(target)
    else:
        import asyncio.coroutines

        target._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
