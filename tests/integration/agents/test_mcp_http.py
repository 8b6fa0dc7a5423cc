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
from tests.support.waiting import PATIENCE, await_until

pytestmark = pytest.mark.thorough

APP = "tests.support.agents_app"
QUESTION = "Does Jaco have any health concerns?"


def start(folder: Path, function: str) -> Any:
    """The server over HTTP at a free port."""
    return serve(folder, f"{APP}:{function}", "--http", "--port", "0", command="mcp")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with start(tmp_path_factory.mktemp("mcp"), "search") as server:
        yield server


def post(served: Served, **headers: str) -> httpx.Response:
    """List the tools with these *headers* in place of the usual ones."""
    usual = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    return httpx.post(
        served.url,
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        headers={**usual, **headers},
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_ten_clients_at_once_get_each_their_own(served: Served, mode: str) -> None:
    async def ask(number: int) -> list[str]:
        async with Client(served.url, mode=mode, read_timeout_seconds=PATIENCE) as client:
            result = await client.call_tool("search", {"query": QUESTION, "top_k": number})
            return [it["id"] for it in json.loads(result.content[0].text)["results"]]

    found = await asyncio.gather(*map(ask, [1, 2, 3] * 3 + [1]))
    assert [len(it) for it in found] == [1, 2, 3] * 3 + [1]
    assert {it[0] for it in found if len(it) == 3} == {"health"}


def test_this_machine_is_answered(served: Served) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    response = post(served)
    assert response.status_code == 200
    assert '"search"' in response.text
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_stream_that_would_never_say_anything_is_refused(served: Served) -> None:
    response = httpx.get(served.url, headers={"accept": "text/event-stream"}, timeout=PATIENCE)
    assert response.status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:80"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
)
def test_another_host_and_another_site_are_refused(served: Served, headers: dict[str, str]) -> None:
    response = post(served, **headers)
    assert response.status_code in (403, 421)
    assert "search" not in response.text


@pytest.mark.parametrize("function", ["waiting", "hanging"])
def test_ctrl_c_ends_it_in_the_middle_of_a_call(tmp_path: Path, function: str) -> None:
    async def leave_a_call(served: Served) -> None:
        async with Client(served.url) as client:
            call = asyncio.create_task(client.call_tool("search", {"query": QUESTION}))
            await await_until((tmp_path / "started").exists)
            assert await asyncio.to_thread(served.end) == 130
            call.cancel()
            await asyncio.wait([call])

    with start(tmp_path, function) as served:
        asyncio.run(leave_a_call(served))
        assert "Traceback" not in served.errors.read_text()
