"""What a wrapped function returns and tells, and what it leaves alone."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.retrieval_world import (
    HISTORY,
    PASSAGES,
    QUERY,
    REPLIES,
    WIDE,
    Way,
    every_way,
    off,
    scripted,
    search,
    transforming,
)
from tests.support.waiting import PATIENCE


@every_way
def test_a_retrieval_tells_everything(way: Way) -> None:
    retrieval = way.wrap(config=transforming("rewrite")).retrieve(QUERY, top_k=2)
    best = retrieval.matches[0]
    assert (best.id, best.namespace, best.text) == ("health", "__default__", PASSAGES["health"])
    assert best.score == next(row["score"] for row in search(QUERY, 8) if row["id"] == "health")
    assert best.fused_score not in (None, best.score)
    assert best.metadata == {"text": PASSAGES["health"]}
    assert best.found_by == ("original", "rewrite")
    assert [match.raw for match in retrieval.matches] == retrieval.response
    assert retrieval.variants == (
        qtm.Variant("original", QUERY, 1.0),
        qtm.Variant("rewrite", REPLIES["rewrite"]["rewrite"], 0.6),
    )
    assert (retrieval.status, retrieval.degradations) == ("full", ())
    assert retrieval.transformation == qtm.Transformation(rewrite=REPLIES["rewrite"]["rewrite"])
    stages = "preprocess search.original transform.rewrite search.variants fuse keyword_evidence"
    assert {stage.name for stage in retrieval.trace.stages} >= set(stages.split())


def test_off_calls_the_plain_function_with_the_very_arguments() -> None:
    seen: list[Any] = []
    result = object()

    def function(query: Any, *more: Any, **named: Any) -> Any:
        seen.append((query, more, named))
        return result

    query, more, named = object(), [1], {"a": 1}
    assert qtm.QueryMiddleware(off()).wrap(function)(query, more, named=named) is result
    ((got, others, names),) = seen
    assert (got is query, others[0] is more, names["named"] is named) == (True, True, True)


@pytest.mark.parametrize("kind", [list, iter])
def test_a_function_with_a_history_of_its_own_gets_it_too(kind: Any) -> None:
    seen: list[Any] = []

    def function(query: str, top_k: int = 4, history: Any = None) -> Any:
        seen.append(history)
        return search(query, top_k)

    model = ScriptedModel(scripted)
    wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=model).wrap(function)
    history = kind(HISTORY)
    wrapped.retrieve(QUERY, history=history)
    assert len(seen) == 3
    assert all(list(turns) == list(HISTORY) for turns in seen)
    # The search for the question gets the caller's own object.
    assert sum(turns is history for turns in seen) == (kind is list)
    assert len(model.prompts[0].history) == 2


@pytest.mark.parametrize("query", ["", "  ", "x" * 9_000])
def test_a_query_that_is_passed_on_goes_where_the_function_has_a_place_for_it(query: str) -> None:
    def by_keyword(*, question: str, limit: int = 4) -> list[Any]:
        return [{"id": "a", "text": question}]

    wrapped: Any = qtm.middleware(by_keyword)
    assert wrapped("a gym") == [{"id": "a", "text": "a gym"}]
    assert wrapped(query) == [{"id": "a", "text": query}]


def test_single_words_that_were_reranked_are_texts_for_the_next_question_too() -> None:
    words = ["Refunds", "Vacation", "Overtime", "Travel", "Contracts", "Jaco", "Nike"]
    wrapped = qtm.middleware(lambda query, top_k=4: words[:top_k])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wrapped("Who is Jaco?")[0] == "Jaco"
        assert "Nike" in wrapped("Who is Nike?")


# --- several queries ------------------------------------------------------------------------------


def retrieve_many(wrapped: Any, is_async: bool, *args: Any, **kwargs: Any) -> list[qtm.Retrieval]:
    if is_async:
        return asyncio.run(wrapped.aretrieve_many(*args, **kwargs))
    found: list[qtm.Retrieval] = wrapped.retrieve_many(*args, **kwargs)
    return found


both_ways = pytest.mark.parametrize("is_async", [False, True])


@both_ways
def test_what_one_of_them_raises_is_raised_and_no_other_begins(is_async: bool) -> None:
    begun = []

    def broken(query: str) -> list[Any]:
        begun.append(query)
        raise ConnectionError(query)

    wrapped = qtm.QueryMiddleware({"limits": {"maxConcurrency": 2}}).wrap(broken)
    with pytest.raises(ConnectionError):
        retrieve_many(wrapped, is_async, [str(number) for number in range(50)])
    assert len(begun) < 10
    with pytest.raises(qtm.InvalidQuery, match="query must be a list of queries"):
        retrieve_many(wrapped, is_async, "a text")


def test_the_error_of_one_of_them_is_not_lost_when_another_ends_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed, ended = threading.Event(), threading.Event()
    cancel = Deadline.cancel

    def cancel_slowly(deadline: Deadline) -> None:
        cancel(deadline)
        failed.set()
        ended.wait(0.2)

    def searched(query: str) -> list[Any]:
        if query == "broken":
            raise ConnectionError(query)
        failed.wait(PATIENCE)
        return []

    monkeypatch.setattr(Deadline, "cancel", cancel_slowly)
    with pytest.raises(ConnectionError, match="broken"):
        qtm.middleware(searched).retrieve_many(["broken", "whole"])
    ended.set()


def test_each_of_many_questions_sees_a_history_that_is_an_iterator() -> None:
    history = [{"role": "user", "content": "Who is Nike?"}]
    model = ScriptedModel({"standalone": "What does Nike plan?", "rewrite": "plans of Nike"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model)
    found = qm.wrap(lambda query: ROWS).retrieve_many(
        ["What does it plan?", "Where is it?"], history=iter(history)
    )
    for retrieval in found:
        assert "standalone" in [variant.kind for variant in retrieval.variants]


# --- a set-up that nothing can be improved with ---------------------------------------------------

ROWS: Final = [{"id": "a", "score": 0.9}, {"id": "b", "score": 0.8}]
UNUSABLE: Final[dict[str, tuple[Any, str]]] = {
    "ids": (ROWS, "include_metadata=True"),
    "another field": (
        [{**ROWS[0], "metadata": {"blurb": "Jaco is well"}}, ROWS[1]],
        '"text": "blurb"',
    ),
    "unknown": ({"answer": {"rows": []}}, "read= (response -> list of items)"),
}


@every_way
@pytest.mark.parametrize("name", UNUSABLE)
def test_a_function_whose_results_cannot_be_improved_is_warned_of_once(
    name: str, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    response, advice = UNUSABLE[name]
    searched = way.wrap(lambda query, top_k: response)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        searched.call(QUERY, top_k=2)
        searched.call(QUERY, top_k=2)
        searched.retrieve(QUERY, top_k=2)
    assert [it.category for it in told] == [qtm.SetupWarning]
    message = str(told[0].message)
    assert advice in message
    assert QUERY not in message
    assert [it.message for it in caplog.records if "degraded" not in it.message] == [message]
    if name != "unknown":
        # Texts are looked for once, and no more passages are fetched for nothing.
        assert [top_k for _, top_k in searched.calls] == [WIDE, 2, 2]
