"""``qtm ingest`` on files, with the real model."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "bees.md").write_text(
        "# Bees\n\nBees live in hives. They make honey.", encoding="utf-8"
    )
    (folder / "ants.txt").write_text("Ants live in hills.", encoding="utf-8")
    return folder


def messages(ended: Ended) -> dict[str, dict[str, object]]:
    """The log lines; anything else on stderr is an error here."""
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    return {line["message"]: line["meta"] for line in lines}


def test_documents_are_ingested_and_a_pipe_gets_log_lines(
    qtm: Run, docs: Path, tmp_path: Path
) -> None:
    ended = qtm("ingest", "docs")
    assert ended.code == 0, ended.err
    assert messages(ended)["Reading documents"] == {"files": 2}
    assert messages(ended)["Loaded documents"] == {"count": 2, "skipped": 0}
    assert messages(ended)["Created chunks"] == {"count": 2}
    assert "2 documents in 2 chunks: 2 added" in ended.out
    with sqlite3.connect(tmp_path / ".tmp" / "index" / "qtmiddleware.sqlite") as run:
        assert {row[0] for row in run.execute("SELECT id FROM passages")} == {
            "ants.txt#0",
            "bees.md#0",
        }
    run.close()


def test_a_second_run_says_that_nothing_changed(qtm: Run, docs: Path) -> None:
    qtm("ingest", "docs", "--set", "indexPath=own/place.sqlite")
    ended = qtm("ingest", "docs", "--set", "indexPath=own/place.sqlite", "--json")
    report = json.loads(ended.out)
    assert (report["unchanged"], report["embedded"], report["written"]) == (2, 0, 0)


def test_what_is_left_out_of_a_folder_is_counted(qtm: Run, docs: Path) -> None:
    for name in ("old.doc", "other.DOC", "photo.png"):
        (docs / name).write_text("no text", encoding="utf-8")
    ended = qtm("ingest", "docs", "--json")
    assert any(
        line.startswith("left out: 2 .doc, 1 .png; supported: .txt")
        for line in ended.err.splitlines()
    )
    assert (ended.code, json.loads(ended.out)["left_out"]) == (0, {".doc": 2, ".png": 1})
    refused = qtm("ingest", "docs/old.doc")
    assert (
        refused.code,
        "skipped: docs/old.doc: an old Office format (save it as .docx first)" in refused.err,
    ) == (
        1,
        True,
    )


@pytest.mark.parametrize("arguments", [(), ("nowhere",), ("docs", "--no-such-option")])
def test_what_cannot_be_ingested_is_a_usage_error(
    qtm: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ended = qtm("ingest", *arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert not (tmp_path / ".tmp").exists()


@pytest.mark.parametrize("arguments", [("--set", "indexPath=:memory:"), ("-c", "memory.json")])
def test_an_index_that_nobody_could_search_is_a_usage_error(
    qtm: Run, docs: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "memory.json").write_text(json.dumps({"store": {"kind": "memory"}}))
    ended = qtm("ingest", "docs", *arguments)
    assert ended.code == 2
    assert "lost when qtm ends" in ended.err


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a shell of POSIX here")
@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("2>&-", 0, ""),
        ("| true", 0, ""),
        (">/dev/full", 1, "No space left"),
    ],
)
def test_output_that_nobody_takes_ends_in_no_traceback(
    docs: Path, tmp_path: Path, streams: str, code: int, said: str
) -> None:
    if "/dev/full" in streams and not Path("/dev/full").exists():
        pytest.skip("there is no device here that is always full")
    program = [
        sys.executable,
        "-c",
        "from qtmiddleware.kit.cli import main; main()",
        "ingest",
        "docs",
        "--log-json",
    ]
    command = f"{shlex.join(program)} --json {streams}; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=200, check=False
    )
    assert ended.returncode == code
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr
    assert said in ended.stderr.decode()


@pytest.mark.parametrize("place", ["reading", "embedding", "publishing"])
def test_ctrl_c_says_so_and_the_next_run_completes(
    qtm: Run, docs: Path, tmp_path: Path, place: str
) -> None:
    for number in range(3):
        (docs / f"{number}.txt").write_text(f"This is text {number}.")
    # The signal comes at the moment a stage says how far it is.
    program = f"""
import os, signal
from qtmiddleware.kit.cli import ingest, main
from contextlib import contextmanager
@contextmanager
def interrupting():
    def listen(step):
        if step.stage == {place!r}:
            os.kill(os.getpid(), signal.SIGINT)
    yield listen
ingest._open_json_log = interrupting
main()
"""
    command = [sys.executable, "-c", program, "ingest", "docs", "--set", "indexPath=i.sqlite"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=200, check=False)
    assert ended.returncode == 130
    assert ended.stderr.decode().splitlines() == ["qtm: interrupted"]
    report = json.loads(qtm("ingest", "docs", "--set", "indexPath=i.sqlite", "--json").out)
    assert (report["documents"], report["written"]) == (5, 5)


@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals here")
def test_a_terminal_shows_progress_unless_log_lines_are_asked_for(
    docs: Path, tmp_path: Path
) -> None:
    import pty

    # Nobody answers there.
    contexts = {"contextualChunks": True, "llm": {"baseUrl": "http://127.0.0.1:9/v1"}}
    (tmp_path / "contexts.json").write_text(json.dumps(contexts))
    for number in range(8):
        (docs / f"{number}.txt").write_text(f"This is text {number}.")

    def on_terminal(*arguments: str) -> str:
        main, side = pty.openpty()
        command = [
            sys.executable,
            "-c",
            "from qtmiddleware.kit.cli import main; main()",
            "ingest",
            "docs",
            *arguments,
        ]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "OPENAI_API_KEY": "not-a-key"}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            stderr=side,
            stdout=subprocess.DEVNULL,
            timeout=200,
            check=True,
        )
        os.close(side)
        shown = b""
        try:
            while piece := os.read(main, 65536):
                shown += piece
        except OSError:
            pass
        os.close(main)
        assert done.returncode == 0
        return shown.decode("utf-8", "replace")

    shown = on_terminal("-c", "contexts.json")
    assert "embedding chunks" in shown
    assert "warning: the model gave no context" in shown
    plain = on_terminal("--log-json")
    assert "embedding chunks" not in plain
    assert '"message": "Loaded documents"' in plain
