"""What can be said of a function without calling it."""

from __future__ import annotations

import functools
import inspect


def is_async(fn: object) -> bool:
    """Whether calling *fn* gives a coroutine, seen through partials, methods, callable objects and wrappers.

    A wrapper that `functools.wraps` marked as another function's counts as what that function is.
    """
    if isinstance(fn, functools.partial):
        return is_async(fn.func)
    if inspect.ismethod(fn) or isinstance(fn, (staticmethod, classmethod)):
        return is_async(fn.__func__)
    if inspect.iscoroutinefunction(fn):
        return True
    if (wrapped := getattr(fn, "__wrapped__", None)) is not None and wrapped is not fn:
        return is_async(wrapped)
    if inspect.isroutine(fn) or inspect.isclass(fn):
        return False
    call = getattr(type(fn), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(getattr(call, "__func__", call))
