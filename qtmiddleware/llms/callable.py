"""Any function from messages to text as a language model."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from qtmiddleware.deadline import NEVER, Deadline
from qtmiddleware.errors import ModelError
from qtmiddleware.llms.time_left import time_left
from qtmiddleware.ports import Prompt, Reply

Messages = list[dict[str, str]]


class CallableModel:
    """Asks *fn*, a function or coroutine function from ``[{"role", "content"}, ...]`` to the text of the reply.

    *name* is part of every cache key; without one it is the function's own. Whatever *fn* raises becomes
    `ModelError` ("unavailable") with the cause, except a `ModelError`, which passes through. A coroutine function is
    cancelled at the deadline; a plain one cannot be stopped, the caller only ceases to wait for it. Tokens and cost
    are not known.
    """

    def __init__(self, fn: Callable[[Messages], str | Awaitable[str]], *, name: str | None = None) -> None:
        self._fn = fn
        self._name = name or _name_of(fn)
        self.can_async = _is_async(fn)
        self.can_sync = not self.can_async

    def __repr__(self) -> str:
        return f"CallableModel({self._name!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        if not self.can_sync:
            raise ModelError("unavailable", f"{self._name} is asynchronous and cannot serve a synchronous call")
        time_left(deadline)
        try:
            answer = self._fn(_messages(prompt))
        except ModelError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise ModelError("unavailable", f"{self._name} returned an awaitable; pass the `async def` function itself")
        return self._reply(answer)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        if not self.can_async:
            raise ModelError("unavailable", f"{self._name} is synchronous and would block the event loop")
        left = time_left(deadline)
        try:
            async with asyncio.timeout(None if left == NEVER else left) as scope:
                answer: Any = self._fn(_messages(prompt))
                return self._reply(await answer)
        except ModelError:
            raise
        except Exception as error:
            if scope.expired():
                raise ModelError("timeout", f"{self._name} did not answer in time") from error
            raise self._failed(error) from error

    def _reply(self, answer: Any) -> Reply:
        if not isinstance(answer, str):
            raise ModelError("unparsable", f"{self._name} returned {type(answer).__name__}; it has to return text")
        if not answer.strip():
            raise ModelError("empty", f"{self._name} returned no text")
        return Reply(answer)

    def _failed(self, error: Exception) -> ModelError:
        return ModelError("unavailable", f"{self._name} raised {type(error).__name__}")


def _messages(prompt: Prompt) -> Messages:
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]


def _is_async(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)
