"""What a caller may say about a function, its embedding and a question, and how it is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from qtmiddleware.errors import WrapError
from qtmiddleware.runtime.background_loop import is_async


class AskOptions(TypedDict, total=False):
    """The conversation so far, oldest first, and settings overridden for this call."""

    history: Iterable[Any] | None
    config: Mapping[str, Any] | None


class WrapOptions(TypedDict, total=False):
    """How a function is to be read.

    *query_arg* and *top_k_arg* name its parameters where the usual names are not used (``inputs.text`` reaches into a
    mapping). *embed* turns texts into vectors for a function that takes a vector: a function of a text or of a list of
    texts, or an object of LangChain, LlamaIndex or sentence-transformers, as `CallableEmbedder` takes them. *read*
    takes the matches out of a response of an own shape and *write* puts others back in. *kind* is ``sync`` or ``async``
    where that cannot be seen.
    """

    query_arg: str | None
    top_k_arg: str | None
    embed: Any
    read: Callable[[Any], Sequence[Any]] | None
    write: Callable[[Any, Sequence[Any]], Any] | None
    kind: Literal["sync", "async"] | None


def awaits(fn: Any, kind: object) -> bool:
    """Whether calls of *fn* must be awaited; raises `WrapError` where it cannot be wrapped at all."""
    if kind not in (None, "sync", "async"):
        raise WrapError(f"kind must be 'sync' or 'async', not {kind!r}")
    if not callable(fn):
        raise WrapError(f"{type(fn).__name__} is not callable; the middleware wraps functions")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise WrapError(
            f"{getattr(fn, '__name__', fn)} yields its results one by one; wrap a function that returns them"
        )
    return kind == "async" if kind else is_async(fn)
