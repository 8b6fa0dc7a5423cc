"""A bug in a model function is found in the log, once, without any text of a query, and is no outage."""

from __future__ import annotations

import asyncio
import asyncio.trsock
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt
from qtmiddleware.providers.llms import defects
from qtmiddleware.providers.llms.callable import CallableModel
from qtmiddleware.providers.llms.defects import convert_defect
from qtmiddleware.types import Deadline

QUERY = "Does Jaco have any health concerns?"
PROMPT = Prompt(
    "rewrite",
    "1",
    "You rewrite a query so that it is found.",
    json.dumps({"query": QUERY}),
    (),
    QUERY,
)
SETTINGS = {
    "transformationType": "rewrite",
    "cache": {"enabled": False},
    "breaker": {"failures": 1},
    "limits": {"llmTimeoutMs": 20_000, "deadlineMs": 25_000},
}


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return [{"id": "a", "score": 1.0, "metadata": {"text": "Jaco has no health concerns"}}]


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def errors() -> Any:
    handler = Logged()
    logger = logging.getLogger("qtmiddleware")
    logger.addHandler(handler)
    yield lambda: [it.getMessage() for it in handler.records if it.levelno >= logging.ERROR]
    logger.removeHandler(handler)


def ask_both_ways(middleware: qtm.QueryMiddleware) -> list[qtm.Retrieval]:
    wrapped = middleware.wrap(search)
    return [wrapped.retrieve(QUERY), asyncio.run(wrapped.aretrieve(QUERY)), wrapped.retrieve(QUERY)]


def looks_up_the_text(messages: Any) -> str:
    return {}[messages[1]["content"]]  # type: ignore[no-any-return]


def looks_up_a_field(messages: Any) -> str:
    return {"choices": []}["answer_text"]  # type: ignore[return-value]


async def takes_nothing() -> str:
    return ""


def misspelt(messages: Any) -> str:
    return mesages[0]  # type: ignore[name-defined,no-any-return]  # noqa: F821


NOTHING: Any = None
BUGS = [
    (looks_up_the_text, "KeyError", "return {}[messages[1]"),
    (looks_up_a_field, "KeyError", '{"choices": []}["answer_text"]'),
    (
        lambda: "x",
        "TypeError",
        "the function cannot be called with one argument, the messages (it takes nothing)",
    ),
    (
        takes_nothing,
        "TypeError",
        "the function cannot be called with one argument, the messages (it takes nothing)",
    ),
    (
        lambda one, two: "x",
        "TypeError",
        "the function cannot be called with one argument, the messages (it takes: one, two)",
    ),
    (misspelt, "NameError", "return mesages[0]"),
    (lambda messages: NOTHING[0], "TypeError", "NOTHING[0]"),
    (lambda messages: messages.text, "AttributeError", "messages.text"),
    (lambda messages: messages[3], "IndexError", "messages[3]"),
]


@pytest.mark.parametrize(("fn", "kind", "shown"), BUGS)
def test_a_bug_in_a_model_function_is_named_and_logged_once_and_opens_no_breaker(
    errors: Any, fn: Any, kind: str, shown: str
) -> None:
    with qtm.QueryMiddleware(SETTINGS, client=fn) as middleware:
        found = ask_both_ways(middleware)
    (logged,) = errors()
    what = shown if "cannot be called" in shown else "a bug in the function"
    detail = f"{fn.__qualname__} raised {kind}: {what}; the traceback is in the log"
    assert [it.degradations for it in found] == [
        (qtm.Degradation("transform.rewrite", "failed", detail),)
    ] * 3
    assert [it.response for it in found] == [search(QUERY)] * 3
    assert "Traceback (most recent call last):" in logged
    assert "test_defects.py" in logged
    assert shown in logged
    assert not [word for word in ("Jaco", "health", "concerns", QUERY) if word in logged]


def test_a_bug_that_many_threads_run_into_at_once_is_logged_once(errors: Any) -> None:
    def fn(messages: Any) -> str:
        raise LookupError

    model = CallableModel(fn)

    def ask(_: int) -> None:
        with pytest.raises(ModelError):
            model.complete(PROMPT, Deadline())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(64)))
    assert len(errors()) == 1


def test_each_kind_of_bug_of_each_function_is_logged(errors: Any) -> None:
    def function() -> Any:
        bugs = iter([TypeError(), KeyError(), TypeError()])

        def fn(messages: Any) -> str:
            raise next(bugs)

        return fn

    def other(messages: Any) -> str:
        raise TypeError

    # What one `def` makes again and again is one function.
    for fn in (function(), function(), other):
        for _ in range(3):
            with pytest.raises(ModelError):
                CallableModel(fn).complete(PROMPT, Deadline())
    assert len(errors()) == 3


def test_a_model_of_one_s_own_with_a_bug_is_logged_too(errors: Any) -> None:
    class Model:
        name = "mine"

        def complete(self, prompt: Any, deadline: Any) -> Any:
            return prompt.nothing

        async def acomplete(self, prompt: Any, deadline: Any) -> Any:
            return prompt.nothing

    with qtm.QueryMiddleware(SETTINGS, client=Model()) as middleware:
        found = ask_both_ways(middleware)
    assert [it.degradations[0].reason for it in found] == ["failed"] * 3
    (logged,) = errors()
    assert "return prompt.nothing" in logged


async def test_an_error_within_a_library_of_connections_is_no_bug(errors: Any) -> None:
    async def fn(messages: Any) -> str:
        gone: Any = None
        return str(asyncio.trsock.TransportSocket(gone).fileno())

    with pytest.raises(ModelError) as caught:
        await CallableModel(fn).acomplete(PROMPT, Deadline())
    assert caught.value.reason == "unavailable"
    assert errors() == []


def test_endless_recursion_is_a_bug_with_a_log_of_bounded_size(errors: Any) -> None:
    def fn(messages: Any) -> str:
        return again(messages)

    def again(messages: Any) -> str:
        return fn(messages)

    with pytest.raises(ModelError):
        CallableModel(fn).complete(PROMPT, Deadline())
    assert len(errors()[0].splitlines()) < 450


@given(query=st.text(min_size=3, max_size=80))
def test_what_the_error_says_is_logged_at_debug_alone(query: str) -> None:
    handler, error = Logged(), KeyError(query)
    logger = logging.getLogger("qtmiddleware")
    logger.addHandler(handler)
    defects._reported.clear()
    failure = convert_defect(error, "fn", error)
    logger.removeHandler(handler)
    assert failure is not None
    assert str(failure) == "fn raised KeyError: a bug in the function; the traceback is in the log"
    (record,) = (it for it in handler.records if it.levelno > logging.DEBUG)
    assert record.getMessage().rpartition("\n")[2] == "KeyError (its message is logged at DEBUG)"
    assert record.exc_info is None


KEY = "sk-proj-markkey0123456789abcdef"


@pytest.mark.parametrize("way", ["function", "async function", "model"])
def test_whatever_a_model_function_raises_is_explained_at_debug_every_time_and_without_a_key(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class APIError(Exception):
        status_code = 500

    monkeypatch.setenv("ANY_API_KEY", "no shape of a key")

    def fails(*_: Any) -> str:
        raise APIError(
            f"upstream said no to {QUERY} with {KEY} and no shape of a key at https://me:{KEY}@host"
        )

    async def afails(messages: Any) -> str:
        return fails()

    class Own:
        name = "own"
        complete = acomplete = fails

    client = {"function": fails, "async function": afails, "model": Own()}[way]
    settings = {**SETTINGS, "breaker": {"failures": 0}}
    with (
        caplog.at_level(logging.DEBUG, "qtmiddleware"),
        qtm.QueryMiddleware(settings, client=client) as middleware,
    ):
        (first, *_) = ask_both_ways(middleware)
    told = [it for it in caplog.records if getattr(it, "qtm", {}).get("event") == "model_failed"]
    assert "APIError" in first.degradations[0].detail
    assert [it.levelname for it in told] == ["DEBUG"] * 3
    for record in told:
        assert "Traceback (most recent call last):" in record.getMessage()
        assert (
            f"upstream said no to {QUERY} with (not shown) and (not shown) at https://"
            in record.getMessage()
        )
    assert "markkey" not in caplog.text
    assert not [
        it for it in caplog.records if it.levelno > logging.DEBUG and "upstream" in it.getMessage()
    ]
