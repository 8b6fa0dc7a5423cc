"""Who may ask the server over HTTP, by address, name and token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.mcp.http import TOKEN, build_app, read_token
from qtmiddleware.kit.mcp.server import build_server

SECRET = "a-token-that-nobody-guesses"
BEARER = {"authorization": f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "::1", "localhost", "127.0.0.2", "search.example"]
)
@pytest.mark.parametrize("token", ["", "short", "with a space inside it", "tokén-tokén-tokén"])
def test_another_address_needs_a_long_token(host: str, token: str) -> None:
    with pytest.raises(ConfigError, match=r"at least 16 characters.*QTM_MCP_TOKEN") as caught:
        read_token({TOKEN: token}, host)
    assert not token or token not in str(caught.value)
    assert read_token({TOKEN: SECRET}, host) == SECRET


def test_this_machine_needs_no_token_and_a_short_one_is_refused_here_too() -> None:
    assert read_token({}, "127.0.0.1") == ""
    assert read_token({TOKEN: SECRET}, "127.0.0.1") == SECRET
    with pytest.raises(ConfigError, match="the token must be at least 16"):
        read_token({TOKEN: "short"}, "127.0.0.1")


def find_status(host: str, token: str, headers: dict[str, str]) -> int:
    """The status that a request without a body gets; beyond the guard it is no 403."""
    app = build_app(build_server([], name="x"), host=host, port=8766, token=token)
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "PUT", "path": "/nowhere", "query_string": b"", "raw_path": b"/nowhere",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "root_path": "",
        "scheme": "http", "server": (host, 8766), "http_version": "1.1", "asgi": {"spec_version": "2.3"},
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("host", "token", "headers", "is_let_in"),
    [
        ("127.0.0.1", "", {"host": "127.0.0.1:8766"}, True),
        ("127.0.0.1", "", {"host": "localhost:8766", "origin": "http://localhost:8766"}, True),
        ("127.0.0.1", "", {"host": "search.example:8766"}, False),
        ("127.0.0.1", "", {}, False),
        ("127.0.0.1", SECRET, {"host": "127.0.0.1:8766"}, False),
        ("search.example", SECRET, {"host": "search.example:8766", **BEARER}, True),
        ("search.example", SECRET, {"host": "127.0.0.1:8766", **BEARER}, False),
        ("search.example", SECRET, {"host": "search.example:8766"}, False),
        ("::1", SECRET, {"host": "[::1]:8766", **BEARER}, True),
        ("0.0.0.0", SECRET, {"host": "any.example", **BEARER}, True),
        (
            "0.0.0.0",
            SECRET,
            {"host": "any.example", "origin": "http://any.example", **BEARER},
            False,
        ),
        ("0.0.0.0", SECRET, {"host": "any.example"}, False),
    ],
)
def test_a_request_is_let_in_by_its_name_its_page_and_its_token(
    host: str, token: str, headers: dict[str, str], is_let_in: bool
) -> None:
    assert (find_status(host, token, headers) != 403) is is_let_in
