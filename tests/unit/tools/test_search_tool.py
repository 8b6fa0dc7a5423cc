"""The tool around a wrapped function: what it takes, what it passes on, and that it never raises."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import scripted

ROWS = [{"id": str(it), "score": 1.0 - it / 10, "text": f"Passage {it}."} for it in range(8)]


def make_search(asked: list[dict[str, Any]], **options: Any) -> Any:
    @qtm.middleware(**options)
    def search(query: str, top_k: int = 4, namespace: str = "") -> list[dict[str, Any]]:
        asked.append({"query": query, "top_k": top_k, "namespace": namespace})
        return ROWS[:top_k]

    return search


def ids(written: str) -> list[str]:
    return [it["id"] for it in json.loads(written)["results"]]


def test_fixed_arguments_and_the_number_of_passages_reach_the_function() -> None:
    asked: list[dict[str, Any]] = []
    tool = make_search(asked).as_tool(arguments={"namespace": "docs"})
    assert ids(tool.run("why is the sky blue", top_k=2)) == ["0", "1"]
    assert {it["namespace"] for it in asked} == {"docs"}
    assert len(ids(tool.run("why is the sky blue"))) == 5


@pytest.mark.parametrize(
    ("effort", "calls", "searches"),
    [("minimal", 0, 1), ("low", 1, 1), ("medium", 1, 2), ("high", 1, 4), (None, 0, 1)],
)
def test_effort_decides_about_model_and_searches(
    effort: str | None, calls: int, searches: int
) -> None:
    model = ScriptedModel(scripted)
    asked: list[dict[str, Any]] = []
    tool = make_search(asked, client=model).as_tool()
    assert tool.efforts == ("minimal", "low", "medium", "high")
    tool.run("Does Jaco have any health concerns?", effort=effort)
    assert len(model.prompts) == calls
    assert len(asked) >= searches
    assert (len(asked) == 1) is (searches == 1)


def test_without_a_model_every_effort_is_minimal_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    tool = make_search([]).as_tool()
    assert tool.efforts == ("minimal",)
    found = json.loads(tool.run("why is the sky blue", effort="high"))
    assert "effort was minimal" in found["advice"]
    assert found["results"]


def test_both_callables_carry_what_frameworks_read() -> None:
    tool = make_search([]).as_tool(name="search_docs", collection="the docs", about="Manuals.")
    for made in (tool.run, tool.arun):
        assert (made.__name__, made.__doc__) == ("search_docs", tool.description)
        assert list(inspect.signature(made).parameters) == list(tool.input_schema["properties"])
    assert inspect.iscoroutinefunction(tool.arun)
    assert not inspect.iscoroutinefunction(tool.run)
    assert "the docs. Manuals." in tool.description
    jsonschema.Draft202012Validator.check_schema(tool.input_schema)


async def test_an_asynchronous_function_is_a_tool_both_ways() -> None:
    @qtm.middleware
    async def search(query: str) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        return ROWS

    tool = search.as_tool()
    assert ids(await tool.arun("why")) == ids(tool.run("why")) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("top_k", "shown", "said"),
    [
        ("3", 3, ""), ("3.0", 3, ""), (3.0, 3, ""), (99, 8, ""), ("0", 1, ""), (None, 5, ""),
        (True, 5, "top_k"), ("many", 5, "top_k"), (float("nan"), 5, "top_k"),
    ],
)  # fmt: skip
def test_a_number_is_read_as_agents_write_it_and_what_is_none_is_named(
    top_k: Any, shown: int, said: str
) -> None:
    written = make_search([]).as_tool().run("why is the sky blue", top_k=top_k)
    assert len(ids(written)) == shown
    assert said in json.loads(written).get("advice", "")


@pytest.mark.parametrize(
    ("effort", "calls"), [("LOW", 1), ('"low"', 1), ("", 0), ("hard", 0), (7, 0)]
)
def test_an_effort_is_read_as_agents_write_it(effort: Any, calls: int) -> None:
    model = ScriptedModel(scripted)
    written = make_search([], client=model).as_tool().run("Is Jaco ill?", effort=effort)
    assert len(model.prompts) == calls
    assert ("effort must be one of" in written) is (effort in ("hard", 7))


async def test_an_argument_that_there_is_none_of_is_named_and_takes_nothing_away() -> None:
    found = json.loads(await make_search([]).as_tool().call({"query": "why", "limit": 3}))
    assert len(found["results"]) == 5
    assert 'search has no argument "limit".' in found["advice"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise self


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("for url: https://search.example/v1?api_key=SECRET"),
        RuntimeError("headers {'Authorization': 'Basic SECRET'}"), Unprintable(), SystemExit(3),
    ],
)  # fmt: skip
def test_of_what_the_function_raises_the_agent_gets_the_kind(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    @qtm.middleware
    def search(query: str) -> list[Any]:
        raise error

    tool = search.as_tool()
    for written in (tool.run("why"), asyncio.run(tool.arun("why"))):
        assert json.loads(written) == {"error": f"The tool search failed: {type(error).__name__}."}
    assert "SECRET" not in caplog.text
    assert f"the tool search failed: {type(error).__name__}" in caplog.text


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
)


@settings(deadline=None)
@given(anything, anything, anything, anything)
def test_whatever_a_model_passes_it_gets_json_and_no_exception(
    query: Any, top_k: Any, effort: Any, max_tokens: Any
) -> None:
    tool = qtm.middleware(lambda query: ROWS).as_tool()
    found = json.loads(tool.run(query, top_k, effort, max_tokens))
    assert "error" in found or "results" in found
    assert "results" in found or found["error"].endswith(".")


async def test_cancelling_the_call_cancels_the_function() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @qtm.middleware
    async def search(query: str) -> list[Any]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    call = asyncio.create_task(search.as_tool().arun("why"))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()
