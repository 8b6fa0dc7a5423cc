"""``qtm ingest`` on files, with the real model."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended
from tests.support.terminal import Terminal

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
MAIN = "from qtmiddleware.kit.cli import main; main()"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    bees = "# Bees\n\nBees live in hives. They make honey."
    (folder / "bees.md").write_text(bees, encoding="utf-8")
    (folder / "ants.txt").write_text("Ants live in hills.", encoding="utf-8")
    return folder


def test_documents_are_ingested_once_and_a_pipe_gets_log_lines(qtm: Run, docs: Path) -> None:
    ended = qtm("ingest", "docs")
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    told = {line["message"]: line["meta"] for line in lines}
    assert told["Reading documents"] == {"files": 2}
    assert told["Loaded documents"] == {"count": 2, "skipped": 0}
    assert told["Created chunks"] == {"count": 2}
    assert "2 documents in 2 chunks: 2 added" in ended.out
    report = json.loads(qtm("ingest", "docs", "--json").out)
    assert (report["unchanged"], report["embedded"], report["written"]) == (2, 0, 0)
    row = json.loads(qtm("query", "--no-answer", "--json", "Where do ants live?").out)
    assert [it["id"] for it in row["passages"]] == ["ants.txt#0", "bees.md#0"]


def test_what_is_left_out_of_a_folder_is_counted(qtm: Run, docs: Path) -> None:
    for name in ("old.doc", "other.DOC", "photo.png"):
        (docs / name).write_bytes(b"no text\0")
    ended = qtm("ingest", "docs", "--json")
    assert "left out: 2 .doc, 1 .png; supported: .txt" in ended.err
    assert (ended.code, json.loads(ended.out)["left_out"]) == (0, {".doc": 2, ".png": 1})
    refused = qtm("ingest", "docs/old.doc")
    assert refused.code == 1
    assert "skipped: docs/old.doc: binary" in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "dataPath"),
        ("nowhere", "nowhere"),
        ("docs --no-such-option", "--no-such-option"),
        ("docs --set indexPath=:memory:", "lost when qtm ends"),
        ("docs -c memory.json", "lost when qtm ends"),
    ],
)
def test_what_cannot_be_ingested_is_a_usage_error(
    qtm: Run, docs: Path, tmp_path: Path, arguments: str, said: str
) -> None:
    (tmp_path / "memory.json").write_text(json.dumps({"store": {"kind": "memory"}}))
    ended = qtm("ingest", *arguments.split())
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / ".tmp").exists()


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a shell of POSIX here")
@pytest.mark.parametrize(
    ("streams", "code"), [("<&- >&- 2>&-", 0), ("2>&-", 0), ("| true", 0), (">/dev/full", 1)]
)
def test_output_that_nobody_takes_ends_in_no_traceback(
    docs: Path, tmp_path: Path, streams: str, code: int
) -> None:
    if "/dev/full" in streams and not Path("/dev/full").exists():
        pytest.skip("there is no device here that is always full")
    program = shlex.join([sys.executable, "-c", MAIN, "ingest", "docs", "--json"])
    command = ["bash", "-c", f"{program} {streams}; exit ${{PIPESTATUS[0]}}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode == code
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr
    assert (b"No space left" in ended.stderr) == ("full" in streams)


@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals here")
def test_a_terminal_shows_progress_and_warnings(docs: Path, tmp_path: Path) -> None:
    # Nobody answers there.
    contexts = {"contextualChunks": True, "llm": {"baseUrl": "http://127.0.0.1:9/v1"}}
    (tmp_path / "contexts.json").write_text(json.dumps(contexts))
    for number in range(8):
        (docs / f"{number}.txt").write_text(f"This is text {number}.")
    environ = {**os.environ, "TERM": "xterm", "OPENAI_API_KEY": "not-a-key"}
    asked = ("ingest", "docs", "-c", "contexts.json")
    with Terminal(*asked, folder=tmp_path, environ=environ) as terminal:
        assert terminal.ended() == 0
        shown = terminal.screen
    assert "embedding chunks" in shown
    assert "warning: " in shown
    assert '"message": "Loaded documents"' not in shown
