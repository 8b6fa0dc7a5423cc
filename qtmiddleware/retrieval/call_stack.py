"""Know which call of a wrapped function is running, and record what happens inside it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final
from weakref import ref

from qtmiddleware.runtime.services import Search
from qtmiddleware.types import Ranking


class RunningCall:
    """A context manager that registers a running call of a wrapped function.

    While the call runs, code inside the function can record details in *search*. To let
    `is_nested_call` recognise the call, set *fn* inside the ``with`` block. Only a weak reference
    to the call is registered, so that an interrupt such as Ctrl+C leaves no call behind.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.fn: Callable[..., Any] | None = None

    def __enter__(self) -> RunningCall:
        search = self.search
        search.calls += 1
        search.initial.clear()
        running_calls = _running_calls.get()
        if running_calls:
            running_calls = tuple([call for call in running_calls if call() is not None])
        self._token = _running_calls.set((*running_calls, ref(self)))
        return self

    def __exit__(self, *_: object) -> None:
        # A task that the function started may outlive the call. It no longer belongs to the call.
        self.fn = None
        try:
            _running_calls.reset(self._token)
        except ValueError:
            # A discarded coroutine may be closed in another context than the one it ran in.
            return


_running_calls: Final[ContextVar[tuple[ref[RunningCall], ...]]] = ContextVar(
    "under_way", default=()
)
"""Weak references to the running calls that contain the current code, the innermost last."""


def is_nested_call(fn: Callable[..., Any]) -> bool:
    """Return whether qtmiddleware is already calling *fn* in the current thread or task.

    This happens if *fn* calls its own wrapped version.
    """
    running_calls = _running_calls.get()
    return bool(running_calls) and any(
        (call := reference()) is not None and call.fn is fn for reference in running_calls
    )


def _find_running_search() -> Search | None:
    running_calls = _running_calls.get()
    call = running_calls[-1]() if running_calls else None
    return None if call is None else call.search


def record_embedding_time(embedding_seconds: float) -> None:
    """Add *embedding_seconds* to the embedding time of the current search."""
    if (search := _find_running_search()) is not None:
        search.embed_seconds += embedding_seconds


def record_unmerged_list(list_name: str, ranking: Ranking) -> None:
    """Record *ranking* as one of the lists that the current search merges.

    If a list with this *list_name* was already recorded, *ranking* is appended to this list. Does
    nothing if no search is running.
    """
    search = _find_running_search()
    if search is None:
        return
    if (earlier := search.initial.get(list_name)) is not None:
        ranking = replace(
            ranking,
            keys=[*earlier.keys, *ranking.keys],
            scores=[*earlier.scores, *ranking.scores],
            passages=[*earlier.passages, *ranking.passages],
        )
    search.initial[list_name] = ranking
