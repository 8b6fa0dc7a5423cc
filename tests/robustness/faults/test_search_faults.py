"""Searches that fail, find nothing, or find what cannot be weighed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fault_world import QUERY, WIDE, Caller, search, transforming
from tests.support.model_server import ModelServer

SUBS = [
    "What did the vet say about Jaco?",
    "Which medical conditions do dogs have?",
    "When is the fee due?",
]


class Unlucky(Exception):
    """What a search raises that fails."""


class Busy(Exception):
    """What a vendor raises whose service is down."""

    status_code = 503


class Throttled(Exception):
    """What a vendor raises that gets too many calls."""

    status_code = 429


@pytest.fixture
def service(service: ModelServer) -> ModelServer:
    service.reply = {"sub_queries": SUBS}
    return service


def failing(*texts: str, error: type[BaseException] = Unlucky) -> Callable[[str, int], Any]:
    def respond(query: str, top_k: int) -> Any:
        if query in texts:
            raise error
        return search(query, top_k)

    return respond


@pytest.mark.parametrize(
    "error", [Unlucky("no index"), Busy(), OSError("gone"), KeyError("namespace")], ids=repr
)
def test_the_error_of_the_original_search_is_raised_as_it_is(
    error: Exception, caller: Caller, service: ModelServer
) -> None:
    def respond(query: str, top_k: int) -> Any:
        raise error

    # It fails while the model thinks: no other text is there to be searched.
    service.holds = True
    day = caller.ask(transforming("decompose"), respond=respond)
    assert day.error is error
    assert {text for text, _ in day.calls} == {QUERY}


def test_a_service_with_too_many_calls_is_not_asked_a_second_time(caller: Caller) -> None:
    day = caller.ask({}, respond=failing(QUERY, error=Throttled))
    assert type(day.error) is Throttled
    assert day.calls == [(QUERY, WIDE)]


def test_a_function_that_refuses_many_candidates_is_asked_as_the_caller_asked(
    caller: Caller, service: ModelServer
) -> None:
    def respond(query: str, top_k: int) -> Any:
        if top_k > 3:
            raise ValueError(f"top_k must be at most 3, not {top_k}")
        return search(query, top_k)

    day = caller.ask(transforming("decompose"), respond=respond)
    assert sorted(day.calls) == sorted(
        (text, top_k) for text in (QUERY, *SUBS) for top_k in (WIDE, 3)
    )
    assert day.retrieval.status == "full"
    assert (
        "keyword_evidence",
        f"the function rejects {WIDE} candidates",
    ) in day.retrieval.trace.notes


def test_a_response_that_cannot_be_read_comes_back_as_it_is(
    caller: Caller, service: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Page:
        """No list of matches anywhere."""

    page = Page()
    day = caller.ask(transforming("decompose"), respond=lambda query, top_k: page)
    assert day.response is page
    assert day.reasons == [("response", "unreadable")]
    assert sorted(day.calls) == sorted([*((text, WIDE) for text in (QUERY, *SUBS)), (QUERY, 3)])
    assert "pass read=" in caplog.text
    assert "Jaco" not in caplog.text
