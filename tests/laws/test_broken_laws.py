"""The laws are no formality: each of them is broken by a middleware that does what it forbids."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from tests.laws import laws
from tests.laws.cases import Case
from tests.laws.laws import LAWS, find_broken_laws
from tests.laws.world import QUERY

Change = Callable[[qtm.Retrieval], qtm.Retrieval]
PATIENCE: Final = 0.2


class Spoiled:
    """A wrapped function whose result is changed before the caller gets it, if he asks *by* that manner."""

    def __init__(self, wrapped: Any, change: Change, by: str = "retrieve await call") -> None:
        self._wrapped = wrapped
        self._change = change
        self._by = by

    def _spoil(self, found: qtm.Retrieval, manner: str) -> qtm.Retrieval:
        return self._change(found) if manner in self._by else found

    def retrieve(self, *args: Any, **kwargs: Any) -> qtm.Retrieval:
        return self._spoil(self._wrapped.retrieve(*args, **kwargs), "retrieve")

    async def aretrieve(self, *args: Any, **kwargs: Any) -> qtm.Retrieval:
        return self._spoil(await self._wrapped.aretrieve(*args, **kwargs), "await")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._wrapped.is_async:
            return self._call(*args, **kwargs)
        return self._spoil(self._wrapped.retrieve(*args, **kwargs), "call").response

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._spoil(await self._wrapped.aretrieve(*args, **kwargs), "call").response


def changing(change: Change, **by: str) -> laws.Wrap:
    return lambda qm, fn, **options: Spoiled(qm.wrap(fn, **options), change, **by)


def responding(change: Callable[[list[Any]], Any]) -> laws.Wrap:
    """Each response, a list of dicts, is another one."""
    return changing(lambda found: replace(found, response=change(list(found.response))))


def around(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> laws.Wrap:
    """The middleware calls another function than the user's, made of it."""
    return lambda qm, fn, **options: qm.wrap(functools.wraps(fn)(make(fn)), **options)


def _raise(found: Any) -> Any:
    raise RuntimeError("a bug of the middleware")


def _swallow(fn: Callable[..., Any]) -> Callable[..., Any]:
    def search(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            raise type(error)(*error.args) from None

    return search


def _in_a_thread(fn: Callable[..., Any]) -> Callable[..., Any]:
    def search(*args: Any, **kwargs: Any) -> Any:
        results: list[Any] = []
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: results.append(context.run(fn, *args, **kwargs)))
        thread.start()
        thread.join()
        return results[0]

    return search


def _without_context(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: contextvars.Context().run(fn, *args, **kwargs)


def _twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    def search(*args: Any, **kwargs: Any) -> Any:
        first = fn(*args, **kwargs)
        if asyncio.iscoroutine(first):
            first.close()
        return fn(*args, **kwargs)

    return search


def _with_changed_arguments(fn: Callable[..., Any]) -> Callable[..., Any]:
    def search(*args: Any, **kwargs: Any) -> Any:
        found = fn(*args, **kwargs)
        kwargs["filters"]["kind"].append("bird")
        return found

    return search


def _with_changed_results(fn: Callable[..., Any]) -> Callable[..., Any]:
    def search(*args: Any, **kwargs: Any) -> Any:
        found = fn(*args, **kwargs)
        if isinstance(found, list):
            found[0]["text"] += " Indeed."
        return found

    return search


def _with_other_arguments(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: fn(*args, **{**kwargs, "filters": None})


def _add_score(rows: list[Any]) -> list[Any]:
    return [{**row, "score": row["score"] + 1} for row in rows]


def _make_up(rows: list[Any]) -> list[Any]:
    return [*rows[1:], {"id": "p99", "text": "Jaco is ill.", "score": rows[0]["score"], "page": 1}]


def _log(found: qtm.Retrieval) -> qtm.Retrieval:
    logging.getLogger("qtmiddleware").warning("asked: %s", QUERY)
    return found


def _tell_nothing(found: qtm.Retrieval) -> qtm.Retrieval:
    return replace(found, status="full", degradations=())


def _leave_a_task(found: qtm.Retrieval) -> qtm.Retrieval:
    _left.append(asyncio.ensure_future(asyncio.Event().wait()))
    return found


_left: list[Any] = []


def _reverse(found: qtm.Retrieval) -> qtm.Retrieval:
    return replace(found, response=found.response[::-1], matches=found.matches[::-1])


def _patiently(qm: qtm.QueryMiddleware, fn: Callable[..., Any], **options: Any) -> Any:
    config = qm.config.overridden({"limits": {"llmTimeoutMs": 60_000}})
    return qtm.QueryMiddleware(config, client=qm.engine.model).wrap(fn, **options)


def _as(preset: str) -> laws.Wrap:
    return lambda qm, fn, **options: qtm.QueryMiddleware(preset, client=qm.engine.model).wrap(
        fn, **options
    )


FEW: Final = Case(supply="few", setting="rules")
RULES: Final = Case(setting="rules")
BREAKS: Final[dict[laws.Law, tuple[Case, laws.Wrap]]] = {
    laws.is_answered: (RULES, changing(_raise)),
    laws.is_own_error: (Case(search="fails"), around(_swallow)),
    laws.is_same_type: (RULES, responding(tuple)),
    laws.is_as_many: (RULES, responding(lambda rows: rows[:-1])),
    laws.is_kept: (FEW, responding(lambda rows: rows[1:])),
    laws.is_single: (RULES, responding(lambda rows: [rows[0], *rows[:-1]])),
    laws.is_found: (RULES, responding(_make_up)),
    laws.is_thrifty: (RULES, around(_twice)),
    laws.is_untouched: (RULES, around(_with_changed_arguments)),
    laws.is_passed_on: (RULES, around(_with_other_arguments)),
    laws.is_own_query: (RULES, changing(lambda found: replace(found, original_query="jaco"))),
    laws.is_told: (Case(model="failing"), changing(_tell_nothing)),
    laws.is_matched: (RULES, responding(lambda rows: rows[::-1])),
    laws.is_consistent: (RULES, changing(_reverse, by="call")),
    laws.is_same_either_way: (RULES, changing(_reverse, by="await")),
    laws.is_as_by_rules: (
        Case(model="failing", seed=3),
        changing(lambda found: _reverse(found) if found.status == "degraded" else found),
    ),
    laws.is_off: (Case(setting="off"), _as("rules")),
    laws.is_free: (RULES, _as("thorough")),
    laws.is_at_home: (RULES, around(_in_a_thread)),
    laws.is_in_context: (RULES, around(_without_context)),
    laws.is_in_time: (Case(model="late"), _patiently),
    laws.is_tidy: (Case(way="async", setting="rules"), changing(_leave_a_task, by="await")),
    laws.is_discreet: (RULES, changing(_log)),
}


@pytest.mark.parametrize("text", LAWS)
def test_a_middleware_that_breaks_a_law_is_caught(text: str) -> None:
    case, wrap = BREAKS[LAWS[text]]
    assert find_broken_laws(case) == {}
    assert text in find_broken_laws(case, wrap, PATIENCE)


ALSO_BREAKS: Final = (
    (laws.is_untouched, around(_with_changed_results)),
    (laws.is_found, responding(_add_score)),
)


@pytest.mark.parametrize(("check", "wrap"), ALSO_BREAKS, ids=("results", "scores"))
def test_changed_results_and_made_up_scores_are_caught(check: laws.Law, wrap: laws.Wrap) -> None:
    assert list(check(laws.play_all(RULES, wrap)))
