"""A query nothing can be made of is passed on as it was; what is set impossibly is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fault_world import QUERY, Caller, search, transforming
from tests.support.model_server import ModelServer

QUERIES: dict[str, tuple[Any, str]] = {
    "empty": ("", "blank"),
    "blank": (" \t\n", "blank"),
    "a number": (42, "not_text"),
    "a vector": ([0.25, 0.5], "not_text"),
    "None": (None, "not_text"),
    "overlong": ("x" * 8_001, "too_long"),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("kind", ["none", "rewrite"])
def test_a_query_nothing_can_be_made_of_is_passed_on_as_it_was(
    name: str, kind: str, caller: Caller, service: ModelServer
) -> None:
    query, reason = QUERIES[name]
    found = search(QUERY, 3)
    day = caller.ask(transforming(kind), query=query, respond=lambda _, top_k: found)
    assert day.error is None
    assert day.response is found
    assert (len(day.calls), service.bodies) == (1, [])
    # The very object, and the number of passages that the caller asked for.
    assert day.calls[0][0] is query
    assert day.calls[0][1] == 3
    assert day.retrieval.original_query is query
    assert day.retrieval.status == "degraded"
    assert [(it.stage, it.reason) for it in day.retrieval.degradations] == [("query", reason)]
    assert [match.id for match in day.retrieval.matches] == [row["id"] for row in found]


@pytest.mark.parametrize("history", [["hello"], [{"role": "user", "content": 7}], [3]])
def test_a_history_that_cannot_be_read_is_left_out_and_told(
    history: list[Any], caller: Caller, service: ModelServer
) -> None:
    service.reply = {"rewrite": "Does the dog Jaco have an illness?"}
    day = caller.ask(transforming("rewrite"), history=history)
    assert [(it.stage, it.reason) for it in day.retrieval.degradations] == [
        ("history", "unreadable")
    ]
    assert [it.kind for it in day.retrieval.variants] == ["original", "rewrite"]
