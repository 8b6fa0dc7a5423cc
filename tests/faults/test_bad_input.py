"""What cannot be searched is refused before anything is called; what is set impossibly is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from fault_world import QUERY, WIDE, Caller, ChatService, search, transforming

import qtmiddleware as qtm

QUERIES: dict[str, Any] = {
    "empty": "",
    "blank": " \t\n",
    "blank in Unicode": "\u2003\u00a0\u3000",
    "None": None,
    "a number": 42,
    "bytes": b"Does Jaco eat?",
    "a list": ["Does Jaco eat?"],
    "overlong": "x" * 8_001,
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("kind", ["none", "rewrite"])
def test_what_cannot_be_searched_is_refused_before_any_call(
    name: str, kind: str, caller: Caller, service: ChatService
) -> None:
    day = caller.ask(transforming(kind), query=QUERIES[name])
    assert isinstance(day.error, qtm.InvalidQuery)
    assert isinstance(day.error, ValueError)
    assert day.error.argument == "query"
    assert str(day.error).startswith("query ")
    assert (day.calls, service.bodies) == ([], [])


def test_the_longest_query_is_searched(caller: Caller) -> None:
    day = caller.ask({}, query="dog " * 2_000)
    assert day.error is None
    assert day.retrieval.original_query == "dog " * 2_000


def test_how_long_a_query_may_be_is_set(caller: Caller) -> None:
    day = caller.ask({"limits": {"maxQueryChars": 10}}, query=QUERY)
    assert isinstance(day.error, qtm.InvalidQuery)
    assert str(day.error) == f"query has {len(QUERY)} characters; limits.maxQueryChars allows 10"
    assert day.calls == []


@pytest.mark.parametrize(
    "query", ["🐶", "a\x00b", "\ud800 dog", "؟", "...", "\u200bdog", "<script>", "{query}", "%s %d", "0"]
)
def test_odd_queries_are_searched_as_they_are(query: str, caller: Caller, service: ChatService) -> None:
    service.answer = {"rewrite": "Which dog?"}
    day = caller.ask(transforming("rewrite"), query=query)
    assert day.error is None
    assert day.retrieval.original_query == query
    assert (query, WIDE) in day.calls


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"fusoin": {}}, "fusoin"),
    "unknown key in a group": ({"fusion": {"rrfk2": 1}}, "fusion.rrfk2"),
    "impossible number": ({"topK": 0}, "topK"),
    "impossible word": ({"transformationType": "magic"}, "transformationType"),
    "not a number": ({"keywordEvidence": {"weight": float("nan")}}, "keywordEvidence.weight"),
    "impossible together": ({"chunkOverlap": 900}, "chunkOverlap"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_setting_for_one_call_is_refused_before_any_call(name: str, caller: Caller, service: ChatService) -> None:
    values, path = BAD_CONFIGS[name]
    day = caller.ask(transforming("rewrite"), config=values)
    assert isinstance(day.error, qtm.ConfigError)
    assert day.error.path == path
    assert path in str(day.error)
    assert (day.calls, service.bodies) == ([], [])


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_setting_for_a_block_is_refused_at_its_first_call(name: str, caller: Caller) -> None:
    values, path = BAD_CONFIGS[name]
    with qtm.override(values):
        day = caller.ask({})
    assert isinstance(day.error, qtm.ConfigError)
    assert day.error.path == path
    assert day.calls == []


@pytest.mark.parametrize(
    "history", [["hello"], [{"role": "user", "content": 7}], [{"role": None, "content": "x"}], [3]]
)
def test_a_history_that_is_none_is_refused_before_any_call(
    history: list[Any], caller: Caller, service: ChatService
) -> None:
    day = caller.ask(transforming("rewrite"), history=history)
    assert isinstance(day.error, qtm.InvalidQuery)
    assert day.error.argument == "history"
    assert (day.calls, service.bodies) == ([], [])


@pytest.mark.parametrize("top_k", [0, -1])
def test_an_impossible_top_k_is_the_functions_own_matter(top_k: int, caller: Caller) -> None:
    def respond(query: str, asked: int) -> list[dict[str, Any]]:
        if asked < 1:
            raise ValueError(f"top_k must be at least 1, not {asked}")
        return search(query, asked)

    day = caller.ask({}, respond=respond, top_k=top_k)
    assert type(day.error) is ValueError
    assert str(day.error) == f"top_k must be at least 1, not {top_k}"


def test_a_negative_top_k_loses_no_passage(caller: Caller) -> None:
    day = caller.ask({}, respond=lambda query, top_k: search(query, 5), top_k=-1)
    assert len(day.response) == 5
