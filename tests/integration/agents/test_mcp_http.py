"""``qtm mcp --http``, with the client of the official SDK and with requests that nobody should make."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client

from tests.support.playground_world import Served, serve
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.thorough

QUESTION = "Does Jaco have any health concerns?"


def start(folder: Path, function: str) -> Any:
    """The server over HTTP at a free port."""
    function = f"tests.support.agents_app:{function}"
    return serve(folder, function, "--http", "--port", "0", command="mcp")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with start(tmp_path_factory.mktemp("mcp"), "search") as server:
        yield server


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_ten_clients_at_once_get_each_their_own(served: Served, mode: str) -> None:
    async def ask(number: int) -> int:
        async with Client(served.url, mode=mode, read_timeout_seconds=PATIENCE) as client:
            result = await client.call_tool("search", {"query": QUESTION, "top_k": number})
            return len(json.loads(result.content[0].text)["results"])

    numbers = [1, 2, 3] * 3 + [1]
    assert await asyncio.gather(*map(ask, numbers)) == numbers


@pytest.mark.parametrize(
    ("method", "headers", "statuses"),
    [
        ("POST", {}, {200}),
        # A stream that would never say anything, another host, and other sites.
        ("GET", {"accept": "text/event-stream"}, {405}),
        ("POST", {"host": "evil.example:80"}, {403, 421}),
        ("POST", {"origin": "http://evil.example"}, {403, 421}),
        ("POST", {"origin": "null"}, {403, 421}),
    ],
)
def test_this_machine_alone_is_answered(
    served: Served, method: str, headers: dict[str, str], statuses: set[int]
) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    usual = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-06-18",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"} if method == "POST" else None
    response = httpx.request(
        method, served.url, json=body, headers={**usual, **headers}, timeout=PATIENCE
    )
    assert response.status_code in statuses
    assert ('"search"' in response.text) is (statuses == {200})
    assert not [name for name in response.headers if name.startswith("access-control")]
