"""Who is answered: this machine's own page, and nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import Server, make_token, open_socket
from qtmiddleware.kit.playground.tiers import Tiers
from tests.support import playground_app as app

TOKEN = make_token()
HOST = "127.0.0.1:8765"
OWN = {"host": HOST}
LED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def ask(
    path: str, headers: dict[str, str], *, method: str = "GET", query: str = ""
) -> tuple[int, dict[str, str], str]:
    """The status, headers and text that the application answers with."""
    server = Server(Page(Tiers(app.search), name="x"), token=TOKEN, port=8765)
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        asked = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if not asked:
                await asyncio.Event().wait()
            return asked.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(),
            "raw_path": path.encode(errors="replace"),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "root_path": "",
            "scheme": "http", "server": ("127.0.0.1", 8765), "http_version": "1.1", "asgi": {"spec_version": "2.3"},
        }  # fmt: skip
        await server.app(scope, receive, send)

    asyncio.run(run())
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(it.get("body", b"") for it in sent[1:]).decode()


def test_the_page_is_shown_to_who_has_its_address() -> None:
    status, headers, text = ask(f"/{TOKEN}/", OWN)
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", OWN),
        (f"/{TOKEN[:-1]}/", OWN),
        (f"/{TOKEN}x/", OWN),
        ("/\udcff\u00e9/", OWN),
        (f"/{TOKEN}/", {"host": "evil.example:8765"}),
        (f"/{TOKEN}/", {"host": "127.0.0.1:80"}),
        (f"/{TOKEN}/", {}),
        (f"/{TOKEN}/", {**OWN, "origin": "http://evil.example"}),
        (f"/{TOKEN}/", {**OWN, "origin": "null"}),
        (f"/{TOKEN}/", {**OWN, "sec-fetch-site": "cross-site"}),
        (f"/{TOKEN}/", {**OWN, "sec-fetch-site": "same-site"}),
        (f"/{TOKEN}/", {**OWN, **LED, "sec-fetch-dest": "iframe"}),
        (f"/{TOKEN}/", {**OWN, **LED, "sec-fetch-mode": "cors"}),
        (f"/{TOKEN}/", {**OWN, **LED, "origin": "null"}),
        ("*", OWN),
        ("127.0.0.1:8765", OWN),
        ("", OWN),
    ],
    # The token differs by process, and names of tests must not.
    ids=range(17),
)
def test_anybody_else_is_refused_and_told_nothing(path: str, headers: dict[str, str]) -> None:
    status, found, text = ask(path, headers)
    assert status == 403
    assert TOKEN not in text
    assert "jaco" not in text.casefold()
    assert found["content-security-policy"] == "default-src 'none'"
    assert not [name for name in found if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}, {"origin": f"http://{HOST}"}],
)
def test_its_own_page_and_the_address_bar_are_answered(headers: dict[str, str]) -> None:
    assert ask(f"/{TOKEN}/", {**OWN, **headers})[0] == 200


def test_a_file_of_this_machine_may_lead_to_the_page_and_may_not_ask() -> None:
    assert ask(f"/{TOKEN}/", {**OWN, **LED})[0] == 200
    assert ask(f"/{TOKEN}/", {**OWN, **LED}, query="q=why")[0] == 403
    assert ask(f"/{TOKEN}/", {**OWN, **LED}, method="POST")[0] == 403


@pytest.mark.parametrize(("method", "path"), [("OPTIONS", "*"), ("CONNECT", HOST)])
def test_a_request_without_a_path_is_refused(method: str, path: str) -> None:
    assert ask(path, OWN, method=method)[0] == 403


def test_every_answer_is_locked_up() -> None:
    first, second = (ask(f"/{TOKEN}/", OWN)[1] for _ in range(2))
    policy = first["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'nonce-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert policy != second["content-security-policy"]
    assert (first["referrer-policy"], first["x-content-type-options"]) == ("no-referrer", "nosniff")
    assert first["cache-control"] == "no-store"
    assert not [name for name in first if name.startswith("access-control")]


def test_nothing_but_reading_is_allowed_and_nothing_else_is_there() -> None:
    assert ask(f"/{TOKEN}/", OWN, method="POST")[0] == 405
    assert ask(f"/{TOKEN}/../../etc/passwd", OWN)[0] == 404
    assert ask(f"/{TOKEN}/other", OWN)[0] == 404


def test_what_a_form_sends_is_made_an_address_that_can_be_kept() -> None:
    status, headers, _ = ask(f"/{TOKEN}/", OWN, query="q=why&topK=&user=")
    assert (status, headers["location"]) == (303, "?q=why")
    assert ask(f"/{TOKEN}/", OWN, query="q=why&then=1")[1]["location"] == "?user=why"


def test_two_tokens_are_never_the_same() -> None:
    assert len({make_token() for _ in range(100)}) == 100
    assert len(make_token()) >= 32


def test_a_port_that_is_taken_is_an_error_where_it_was_asked_for_and_none_where_it_was_not() -> (
    None
):
    with open_socket(0) as first:
        port = first.getsockname()[1]
        assert first.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match=f"port {port} .*leave --port out"):
            open_socket(port)
    with open_socket(None) as one, open_socket(None) as other:
        assert one.getsockname() != other.getsockname()
