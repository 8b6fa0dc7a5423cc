"""What ``qtm mcp`` prints for a client's config, and what it says of wrong options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended

Run = Callable[..., Ended]


@pytest.mark.parametrize(
    ("client", "key"), [("claude", "mcpServers"), ("cursor", "mcpServers"), ("vscode", "servers")]
)
def test_the_entry_of_each_client_starts_the_server_in_this_folder(
    qtm: Run, tmp_path: Path, client: str, key: str
) -> None:
    given = ("app:search", "--name", "the staff handbook", "-c", "rules", "--fetch", "app:load")
    ended = qtm("mcp", "config", "--client", client, *given)
    assert ended.code == 0
    entry = json.loads(ended.out)[key]["app-search"]
    assert entry["args"] == ["mcp", "serve", *given, "--folder", str(tmp_path)]
    assert Path(entry["command"]).name == "qtm"
    assert entry.get("type") == ("stdio" if client == "vscode" else None)
    assert "Add this to" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("config", "--client", "claude", "app:search", "--nmae", "x"), "--nmae"),
        (("config", "--client", "other"), "other"),
        (("config",), "--client"),
        (("nothing:search",), "nothing"),
        (("no function",), "MODULE:FUNCTION"),
        (("nothing:search", "--http", "--host", "0.0.0.0"), "nothing"),
        (("--folder", "missing"), "missing"),
    ],
)
def test_what_is_wrong_is_said_and_stdout_stays_empty(
    qtm: Run, arguments: tuple[str, ...], words: str
) -> None:
    ended = qtm("mcp", *arguments)
    assert ended.code == 2
    assert words in ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err


def test_another_address_without_a_token_is_refused(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def search(query): return []", encoding="utf-8")
    ended = qtm("mcp", "app:search", "--http", "--host", "0.0.0.0", "--port", "0")
    assert (ended.code, ended.out) == (2, "")
    assert "QTM_MCP_TOKEN" in ended.err


def test_a_client_that_says_nothing_ends_the_server(qtm: Run, folder: Path) -> None:
    ended = qtm("mcp", folder=folder)
    assert (ended.code, ended.out) == (0, "")
