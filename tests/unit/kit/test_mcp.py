"""The tools as the protocol has them, asked by the official client within this process."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from mcp import Client

import qtmiddleware as qtm
from qtmiddleware.kit.mcp import build_server
from tests.support.waiting import await_until

ROWS = [{"id": "a", "text": "Jaco is healthy."}]


async def call(server: Any, tool: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    async with Client(server) as client:
        result = await client.call_tool(tool, arguments)
        return json.loads(result.content[0].text), result.is_error


async def test_the_tool_is_listed_as_one_that_only_reads_and_another_is_a_failure() -> None:
    tool = qtm.middleware(lambda query: ROWS).as_tool()
    server = build_server(tool, name="a test", about="Notes on Jaco.")
    async with Client(server) as client:
        (listed,) = (await client.list_tools()).tools
    assert listed.name == "search"
    assert listed.annotations.read_only_hint is True
    assert listed.annotations.destructive_hint is False
    found, failed = await call(server, "delete", {})
    assert failed
    assert "the tool is search" in found["error"]


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
        build_server(search.as_tool(), name="x", timeout_seconds=0.05), "search", {"query": "why"}
    )
    assert failed
    assert found["error"] == "search gave no result within 0.05 seconds."
    await await_until(lambda: ended)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_exits_ends_nothing(is_async: bool) -> None:
    def search(query: str) -> list[Any]:
        if "boom" in query:
            sys.exit("a bad query")
        return ROWS

    async def search_async(query: str) -> list[Any]:
        return search(query)

    tool = qtm.middleware(search_async if is_async else search).as_tool()
    server = build_server(tool, name="x")
    async with Client(server) as client:
        for query, is_failure in (("note", False), ("boom", True), ("note", False)):
            result = await client.call_tool("search", {"query": query})
            assert result.is_error is is_failure
            assert "a bad query" not in result.content[0].text
