"""Reranks with any function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.retrieval.scores import checked_scores


class CallableReranker:
    """Turns a function from a question and texts to scores into a reranker.

    *fn* takes the question and a list of strings. It returns one score a text in the texts' order (a list, tuple or
    array; greater is better), or ``(index, score)`` pairs in any order, one for every text. *name* is by default the
    function's own. It is called in a thread, so an async function is refused with `ConfigError`.

    What *fn* raises passes through unchanged. Anything else than one finite number a text raises `ModelError`
    ``unparsable``.
    """

    def __init__(self, fn: Callable[[str, list[str]], Any], *, name: str = "") -> None:
        self._name = name or getattr(fn, "__qualname__", "") or type(fn).__qualname__
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
            raise ConfigError(
                f"{self._name} is async, but a reranker is called in a thread: give a plain function", path="reranker"
            )
        self._fn = fn

    def __repr__(self) -> str:
        return f"CallableReranker(name={self._name!r})"

    @property
    def name(self) -> str:
        """The name it was given, else that of the function."""
        return self._name

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """One score a text, in the texts' order; greater is better."""
        if not texts:
            return []
        made = self._fn(query, list(texts))
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise ModelError("unparsable", f"the reranker {self._name} returned an awaitable: give a plain function")
        return checked_scores(_in_order(made), len(texts))


def _in_order(made: Any) -> Any:
    """The scores of ``(index, score)`` pairs by their index; anything else as it is."""
    given = made.tolist() if hasattr(made, "tolist") else made
    if not isinstance(given, list | tuple) or not given or not all(_is_pair(it) for it in given):
        return given
    by_index = {int(index): score for index, score in given}
    return [by_index.get(at) for at in range(len(given))]


def _is_pair(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and hasattr(item[0], "__index__")
