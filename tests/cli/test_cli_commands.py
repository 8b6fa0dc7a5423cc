"""Every command but the demo, as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.cli.conftest import Ended

Run = Callable[..., Ended]
ROOT = Path(__file__).parents[2]


def test_a_question_becomes_keywords(qtm: Run) -> None:
    ended = qtm("preprocess", "Does Jaco have any health concerns?")
    assert (ended.code, ended.out) == (0, "jaco health concerns\n")


def test_questions_come_from_a_pipe_one_a_line(qtm: Run) -> None:
    ended = qtm("preprocess", text=b"health concerns?\n\nWhat are Jaco's favorite activities?\r\n")
    assert (ended.code, ended.out) == (0, "health concerns\njaco's favorite activities\n")


def test_json_holds_the_language_that_was_used(qtm: Run) -> None:
    ended = qtm("preprocess", "--json", "¿Dónde está la biblioteca?")
    assert json.loads(ended.out)[0]["language"] == "es"


def test_a_terminal_that_lacks_a_character_shows_another(qtm: Run) -> None:
    ended = qtm("preprocess", "Où est la bibliothèque ☂?", PYTHONIOENCODING="cp1252")
    assert ended.code == 0
    assert ended.out.startswith("biblioth")
    assert "☂" not in ended.out


def test_bytes_that_are_no_text_end_in_no_traceback(qtm: Run) -> None:
    ended = qtm("preprocess", text=b"what is \xff\xfe wrong\n", PYTHONIOENCODING="utf-8:surrogateescape")
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("preprocess", " "), 2, "blank"),
        (("preprocess", "--language", "xx", "where is it"), 2, "xx"),
        (("config", "check", "missing.json"), 2, "missing.json"),
        (("nonsense",), 2, "nonsense"),
        (("demo", "--questions", "0"), 2, "questions"),
        (("demo", "--question", "q99"), 2, "q99"),
        (("transform", "Why is the sky blue?"), 1, "OPENAI_API_KEY"),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(qtm: Run, arguments: tuple[str, ...], code: int, words: str) -> None:
    ended = qtm(*arguments)
    assert ended.code == code
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_a_bad_config_names_the_key(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"fusion": {"rrfk": 10}}', encoding="utf-8")
    ended = qtm("config", "check", "bad.json")
    assert ended.code == 2
    assert "rrfK" in ended.err


def test_config_show_tells_where_each_value_came_from(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"topK": 7}', encoding="utf-8")
    rows = json.loads(qtm("config", "show", "own.json", "--json", QTM_CHUNK_SIZE="900").out)
    found = {row["key"]: (row["value"], row["origin"]) for row in rows}
    assert found["topK"] == (7, "file own.json")
    assert found["chunkSize"] == (900, "environment QTM_CHUNK_SIZE")
    assert found["chunkOverlap"] == (200, "default")


def test_the_schema_is_the_one_in_the_repository(qtm: Run) -> None:
    assert qtm("config", "schema").out == (ROOT / "config" / "schema.json").read_text(encoding="utf-8")


def test_the_version_is_shown(qtm: Run) -> None:
    assert qtm("--version").out.startswith("qtmiddleware 0.")


def test_a_model_is_asked_where_its_address_is_set(qtm: Run, httpserver: HTTPServer) -> None:
    reply = {"rewrite": "Rayleigh scattering of sunlight in the atmosphere"}
    message = {"role": "assistant", "content": json.dumps(reply)}
    httpserver.expect_request("/v1/chat/completions", method="POST").respond_with_json(
        {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    )
    ended = qtm(
        "transform", "-t", "rewrite", "--json", "Why is the sky blue?", QTM_LLM_BASE_URL=httpserver.url_for("/v1")
    )
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)[0]["rewrite"] == reply["rewrite"]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f'{sys.executable} -c "from qtmiddleware.cli import main; main()" config show | head -n 1'
    ended = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, timeout=50, check=False)
    assert ended.stderr == b""


def test_ctrl_c_ends_cleanly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from qtmiddleware.cli import main; main()", "preprocess"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Does Jaco have any health concerns?\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"jaco health concerns\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
