"""What all commands have in common, ``qtm config`` and ``qtm transform``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qtmiddleware.config.reading import PRESETS
from qtmiddleware.kit.cli.app import COMMANDS
from tests.support.command_line import Ended
from tests.support.model_server import ModelServer

Run = Callable[..., Ended]
ROOT = Path(__file__).parents[3]
QUESTION = "Does Jaco have any health concerns?"
KEYWORDS = f"query: {QUESTION}\npreprocessed: jaco health concerns\n"
MAIN = "from qtmiddleware.kit.cli import main; main()"


# --- every command, in a process of its own -------------------------------------------------------

NOISY = """
import os, subprocess, sys

print("imported")


def search(query, top_k=3):
    print("called")
    os.write(1, b"from the descriptor\\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"])
    texts = ["Cats sleep", "Jaco has no health concerns", "The fee is due"]
    return [{"id": f"p{n}", "score": 0.9 - n / 100, "text": it} for n, it in enumerate(texts)][:top_k]
"""
RUNS = {
    "check": ("app:search", QUESTION, "--json"),
    "compare": (QUESTION, "--function", "app:search", "--json"),
    "bench": ("--function", "app:search", "--data", "q.csv", "--systems", "rules", "--json"),
    "testset": ("docs", "--out", "made"),
    "shadow": ("log.jsonl",),
    "demo": ("--questions", "0"),
    "playground": ("--port", "-1"),
    "ingest": ("docs", "--json"),
    "query": ("--no-answer", "--json", QUESTION),
    "transform": ("-t", "none", "--json", QUESTION),
    "mcp": ("--folder", "none"),
    "config": ("show", "--json"),
}
REFUSED = {"testset", "shadow", "demo", "playground", "mcp"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a function, questions, documents and a log."""
    path = tmp_path_factory.mktemp("own")
    (path / "app.py").write_text(NOISY)
    (path / "q.csv").write_text(f"question,id\n{QUESTION},p1\n")
    (path / "docs").mkdir()
    (path / "docs" / "jaco.txt").write_text("Jaco has no health concerns, says the vet.")
    (path / "log.jsonl").write_text("{}\n")
    return path


def test_there_is_a_run_of_every_command() -> None:
    assert set(RUNS) == set(COMMANDS)


# `ingest` comes before `query`.
@pytest.mark.parametrize("command", RUNS)
def test_a_command_writes_only_its_result_to_stdout_or_says_in_a_line_what_is_wrong(
    qtm_process: Run, folder: Path, command: str
) -> None:
    ended = qtm_process(command, *RUNS[command], folder=folder)
    assert "Traceback" not in ended.err
    if command in REFUSED:
        assert (ended.code, ended.out) == (2, "")
        return
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)
    if "app:search" in RUNS[command]:
        printed = {"imported", "called", "from the descriptor", "from a child"}
        assert printed <= set(ended.err.splitlines())


def test_the_help_of_check_imports_none_of_the_rooms_that_a_check_uses(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['qtm', 'check', '--help']\n"
        f"try:\n    {MAIN}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--ask-file" in ended.stdout
    rooms = ("retrieval", "wrapping", "transforms", "kit.evaluation", "kit.index", "kit.stores")
    assert not {f"qtmiddleware.{room}" for room in rooms} & set(ended.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("nonsense", 2, "nonsense"),
        ("transform -t none --set preprocess.language=xx x", 2, "xx"),
        ("transform --type rewritten x", 2, "transformationType"),
        ("transform Why?", 1, "OPENAI_API_KEY"),
        ("config show missing.json", 2, "missing.json"),
        ("config init mine.txt", 2, "must end in .json"),
    ],
)
def test_what_cannot_work_ends_with_a_message(
    qtm: Run, arguments: str, code: int, words: str
) -> None:
    ended = qtm(*arguments.split())
    assert (ended.code, words in ended.err) == (code, True), ended.err


def test_ctrl_c_ends_cleanly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "transform", "-t", "none"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{QUESTION}\n".encode())
    process.stdin.flush()
    assert process.stdout.readline() == f"Question: {QUESTION}\n".encode()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, b"Traceback" in err) == (130, False)


@pytest.mark.thorough
def test_output_in_a_narrow_encoding_is_written_with_replacements(qtm_process: Run) -> None:
    asked = ("transform", "-t", "none", "Où ☂?")
    ended = qtm_process(*asked, PYTHONIOENCODING="cp1252")
    assert (ended.code, "?" in ended.out) == (0, True)
    ended = qtm_process(*asked, "--json", PYTHONIOENCODING="cp1252")
    assert json.loads(ended.out)[0]["query"] == "Où ☂?"


# --- config ---------------------------------------------------------------------------------------


def test_every_value_is_shown_with_the_layer_it_came_from(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"topK": 7, "fusion": "max"}')
    sets = ("topK=8", "fusion.rrf_k=10", "transformationType=step-back", "rerank=true")
    options = [it for text in (*sets, "preprocess.keepWords=not,who") for it in ("--set", text)]
    ended = qtm("config", "show", "own.json", "--json", *options, QTM_CHUNK_SIZE="900")
    rows = json.loads(ended.out)
    found = {row["key"]: (row["value"], row["origin"]) for row in rows}
    assert found["fusion.method"] == ("max", "file own.json")
    assert found["chunkSize"] == (900, "environment QTM_CHUNK_SIZE")
    assert found["chunkOverlap"] == (200, "default")
    assert {key: value for key, (value, origin) in found.items() if origin == "--set"} == {
        "topK": 8,
        "fusion.rrfK": 10,
        "transformationType": "stepback",
        "preprocess.keepWords": ["not", "who"],
        "rerank.enabled": True,
    }


def test_a_preset_becomes_a_file_of_ones_own_with_a_schema_that_editors_find(
    qtm: Run, tmp_path: Path
) -> None:
    ended = qtm("config", "init", "--preset", "auto", "own/mine.json")
    assert (ended.code, ended.out) == (0, "own/mine.json\n")
    written = json.loads((tmp_path / "own/mine.json").read_text(encoding="utf-8"))
    schema = tmp_path / "own" / written.pop("$schema")
    preset = json.loads((ROOT / "config/auto.config.json").read_text(encoding="utf-8"))
    assert {**written, "$schema": "./schema.json"} == preset
    assert schema.read_bytes() == (ROOT / "config" / "schema.json").read_bytes()
    assert qtm("config", "show", "own/mine.json").code == 0


def test_nothing_that_is_there_is_overwritten_unless_that_is_asked_for(
    qtm: Run, tmp_path: Path
) -> None:
    names = ("query-transform.config.json", "qtmiddleware.schema.json")
    for name in names:
        (tmp_path / name).write_text("mine")
    refused = qtm("config", "init")
    assert (refused.code, "overwrite it with --force" in refused.err) == (2, True)
    assert qtm("config", "init", "rules.json", "--preset", "rules").code == 0
    assert all((tmp_path / name).read_text() == "mine" for name in names)
    assert qtm("config", "init", "--force").code == 0
    assert not any("mine" in (tmp_path / name).read_text() for name in names)


def test_presets_are_listed_and_taken_as_a_config(qtm: Run, tmp_path: Path) -> None:
    listed = qtm("config", "init", "--help").out
    assert all(name in listed for name in PRESETS)
    assert '"combined"  (preset words)' in qtm("config", "show", QTM_CONFIG="words").out
    # A file in the folder does not take the place of a preset.
    (tmp_path / "auto").write_text('{"topK": 7}', encoding="utf-8")
    assert "4  (default)" in qtm("config", "show", "auto").out
    assert "7  (file ./auto)" in qtm("config", "show", "./auto").out


# --- transform ------------------------------------------------------------------------------------


def test_no_transformation_shows_the_question_and_its_keywords(qtm: Run, tmp_path: Path) -> None:
    ended = qtm("transform", "-t", "none", QUESTION)
    assert (ended.code, ended.out, ended.err) == (0, KEYWORDS, "")
    (tmp_path / "off.json").write_text('{"transformationType": "none"}')
    assert qtm("transform", "-c", "off.json", QUESTION).out == KEYWORDS
    several = qtm("transform", "-t", "none", text=f"{QUESTION}\r\n\nWhere?\n".encode()).out
    assert several.startswith(f"Question: {QUESTION}\n{KEYWORDS}\nQuestion: Where?\n")


def test_a_model_is_asked(qtm: Run, model_server: ModelServer) -> None:
    model_server.reply = {"rewrite": "Rayleigh scattering of sunlight", "sub_queries": []}
    at = {"QTM_LLM_BASE_URL": model_server.url}
    ended = qtm("transform", "-t", "rewrite", "--json", "Why is the sky blue?", **at)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)[0]["rewrite"] == "Rayleigh scattering of sunlight"
    # A question without parts is no failure.
    ended = qtm("transform", "-t", "decompose", "Why?", **at)
    assert (ended.code, ended.err) == (0, "sub_queries: none needed\n")


def test_a_question_for_which_no_model_is_called_is_no_failure(qtm: Run) -> None:
    at = {"QTM_LLM_BASE_URL": "http://127.0.0.1:9"}
    ended = qtm("transform", "--json", "E42", "thank you", **at)
    assert (ended.code, [row["rewrite"] for row in json.loads(ended.out)]) == (0, [None] * 2)
    assert ended.err.startswith("No model was called for 'E42': a greeting or thanks, and codes")
    assert ended.err.count("\n") == 2
    assert qtm("transform", "E42", QUESTION, **at).code == 1
