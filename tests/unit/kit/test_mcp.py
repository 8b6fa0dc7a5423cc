"""The tools as the protocol has them, asked by the official client within this process."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import pytest
from mcp import Client

import qtmiddleware as qtm
from qtmiddleware.kit.mcp import MOST_FETCHES, FetchTool, build_server
from qtmiddleware.tools.search_tool import ToolFailure
from tests.support.waiting import await_until

ROWS = [{"id": "a", "text": "Jaco is healthy."}]


async def call(server: Any, tool: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    async with Client(server) as client:
        result = await client.call_tool(tool, arguments)
        return json.loads(result.content[0].text), result.is_error


async def test_every_tool_is_listed_as_one_that_only_reads() -> None:
    search = qtm.middleware(lambda query: ROWS).as_tool()
    fetch = FetchTool(lambda id_: None, collection="a test")
    server = build_server([search, fetch], name="a test", about="Notes on Jaco.")
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
    assert [it.name for it in tools] == ["search", "fetch"]
    for tool in tools:
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False


async def test_a_tool_that_is_not_there_is_a_failure_that_names_those_that_are() -> None:
    server = build_server([qtm.middleware(lambda query: ROWS).as_tool()], name="x")
    found, failed = await call(server, "delete", {})
    assert failed
    assert "the tools are search" in found["error"]


async def test_a_call_without_an_end_is_cancelled_and_said_to_be_late() -> None:
    ended: list[bool] = []

    @qtm.middleware
    async def search(query: str) -> list[Any]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return []

    found, failed = await call(
        build_server([search.as_tool()], name="x", timeout_seconds=0.05), "search", {"query": "why"}
    )
    assert failed
    assert found["error"] == "search gave no result within 0.05 seconds."
    await await_until(lambda: ended)


async def test_fetch_takes_functions_of_every_kind() -> None:
    async def load(id_: str) -> Any:
        return {"text": {"title": "One", "text": "Its text."}, "list": [1, 2], "none": None}[id_]

    tool = FetchTool(load, collection="a test")
    server = build_server([tool], name="x")
    found, _ = await call(server, "fetch", {"id": "text"})
    assert (found["title"], found["text"]) == ("One", "Its text.")
    assert (await call(server, "fetch", {"id": "list"}))[0]["text"] == "[1, 2]"
    assert "no document" in (await call(server, "fetch", {"id": "none"}))[0]["error"]
    assert "KeyError" in (await call(server, "fetch", {"id": "other"}))[0]["error"]
    assert "id must be" in (await call(server, "fetch", {}))[0]["error"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_exits_ends_nothing(is_async: bool) -> None:
    def search(query: str) -> list[Any]:
        if "boom" in query:
            sys.exit("a bad query")
        return ROWS

    async def search_async(query: str) -> list[Any]:
        return search(query)

    tool = qtm.middleware(search_async if is_async else search).as_tool()
    server = build_server([tool], name="x")
    async with Client(server) as client:
        for query, is_failure in (("note", False), ("boom", True), ("note", False)):
            result = await client.call_tool("search", {"query": query})
            assert result.is_error is is_failure
            assert "a bad query" not in result.content[0].text


async def test_documents_that_hang_take_no_more_than_their_threads() -> None:
    released = threading.Event()
    tool = FetchTool(lambda id_: released.wait(20) and "a text", collection="a test")
    hanging = [asyncio.create_task(tool.call({"id": "a"})) for _ in range(MOST_FETCHES)]
    await asyncio.sleep(0)
    with pytest.raises(ToolFailure, match="Overloaded"):
        await tool.call({"id": "a"})
    released.set()
    assert all("a text" in text for text in await asyncio.gather(*hanging))
