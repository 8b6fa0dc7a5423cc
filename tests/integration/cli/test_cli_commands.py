"""Every command but the demo, as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qtmiddleware.config.reading import PRESETS
from tests.support.command_line import Ended
from tests.support.model_server import ModelServer

Run = Callable[..., Ended]
ROOT = Path(__file__).parents[3]


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
    ended = qtm(
        "preprocess", text=b"what is \xff\xfe wrong\n", PYTHONIOENCODING="utf-8:surrogateescape"
    )
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (("--version",), {"retrieval", "wrapping", "kit.index", "kit.evaluation"}),
        (("config", "presets"), {"retrieval", "wrapping", "kit.index", "kit.evaluation"}),
        (("mcp", "--help"), {"kit.index", "kit.evaluation", "kit.playground"}),
        (("ask", "--help"), {"kit.evaluation", "kit.playground"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_starts_without_the_rooms_of_the_others(
    arguments: tuple[str, ...], unneeded: set[str]
) -> None:
    code = (
        "import sys; from qtmiddleware.kit.cli import main\n"
        f"sys.argv = ['qtm', *{arguments!r}]\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(ended.stderr.split())
    assert "qtmiddleware.kit.cli.app" in imported
    assert {room for room in unneeded if f"qtmiddleware.{room}" in imported} == set()


def test_a_mistyped_command_names_the_one_that_is_meant(qtm: Run) -> None:
    ended = qtm("plaground")
    assert ended.code == 2
    assert "Did you mean 'playground'?" in ended.err


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
def test_what_is_wrong_is_said_in_plain_words(
    qtm: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
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


def test_a_check_warns_of_a_log_whose_folder_is_missing(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"log": {"path": "no/such/queries.jsonl"}}', "utf-8")
    for command in ("check", "show"):
        ended = qtm("config", command, "own.json")
        assert ended.code == 0
        said = "warning: log.path lies in no/such, which does not exist; create the folder, or no query will be logged"
        assert said in " ".join(ended.err.split())
    assert not (tmp_path / "no").exists()
    (tmp_path / "no" / "such").mkdir(parents=True)
    assert "warning" not in qtm("config", "check", "own.json").err


def test_config_show_tells_where_each_value_came_from(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"topK": 7}', encoding="utf-8")
    rows = json.loads(qtm("config", "show", "own.json", "--json", QTM_CHUNK_SIZE="900").out)
    found = {row["key"]: (row["value"], row["origin"]) for row in rows}
    assert found["topK"] == (7, "file own.json")
    assert found["chunkSize"] == (900, "environment QTM_CHUNK_SIZE")
    assert found["chunkOverlap"] == (200, "default")


def test_a_setting_is_set_on_the_command_line_over_every_other(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"topK": 7, "fusion": "max"}', encoding="utf-8")
    given = (
        "topK=8",
        "fusion.rrf_k=10",
        "transformationType=step-back",
        "preprocess.keepWords=not,who",
        "rerank=true",
    )
    sets = [it for text in given for it in ("--set", text)]
    rows = json.loads(qtm("config", "show", "own.json", "--json", *sets, QTM_TOP_K="9").out)
    found = {row["key"]: row["value"] for row in rows if row["origin"] == "--set"}
    assert found == {
        "topK": 8,
        "fusion.rrfK": 10,
        "transformationType": "stepback",
        "preprocess.keepWords": ["not", "who"],
        "rerank.enabled": True,
    }
    assert next(row["value"] for row in rows if row["key"] == "fusion.method") == "max"


@pytest.mark.parametrize("command", [("config", "check"), ("ask", "x"), ("ingest", ".")])
def test_what_is_set_wrongly_is_a_usage_error_that_names_the_nearest_key(
    qtm: Run, command: tuple[str, ...]
) -> None:
    ended = qtm(*command, "--set", "fusion.rrk=3", "--set", "topK=x")
    assert (ended.code, ended.out) == (2, "")
    assert "fusion.rrk is not a setting (--set); did you mean fusion.rrfK?" in ended.err
    assert 'topK must be a whole number from 1 to 10000, not "x" (--set)' in ended.err


def test_no_transformation_shows_the_question_and_its_keywords(qtm: Run, tmp_path: Path) -> None:
    question = "Does Jaco have any health concerns?"
    shown = f"query: {question}\npreprocessed: jaco health concerns\n"
    ended = qtm("transform", "-t", "none", question)
    assert (ended.code, ended.out, ended.err) == (0, shown, "")
    (tmp_path / "off.json").write_text('{"transformationType": "none"}')
    assert qtm("transform", "-c", "off.json", question).out == shown
    (row,) = json.loads(
        qtm("transform", "--set", "transformationType=none", "--json", question).out
    )
    assert (row["preprocessed"], row["sub_queries"], row["notes"]) == (
        "jaco health concerns",
        [],
        [],
    )
    several = qtm("transform", "-t", "none", question, "Where?").out
    assert several.startswith(f"Question: {question}\n{shown}\nQuestion: Where?\n")


def test_a_question_without_parts_is_no_failure(qtm: Run, model_server: ModelServer) -> None:
    model_server.reply = {"sub_queries": []}
    ended = qtm(
        "transform", "-t", "decompose", "Why is the sky blue?", QTM_LLM_BASE_URL=model_server.url
    )
    assert (ended.code, ended.err) == (0, "sub_queries: none needed\n")


def test_the_schema_is_the_one_in_the_repository(qtm: Run) -> None:
    assert qtm("config", "schema").out == (ROOT / "config" / "schema.json").read_text(
        encoding="utf-8"
    )


def test_a_preset_becomes_a_file_of_ones_own_with_a_schema_that_editors_find(
    qtm: Run, tmp_path: Path
) -> None:
    ended = qtm("config", "init", "--preset", "auto", "own/mine.json")
    assert (ended.code, ended.out) == (0, "own/mine.json\n")
    written = json.loads((tmp_path / "own/mine.json").read_text(encoding="utf-8"))
    schema = tmp_path / "own" / written.pop("$schema")
    assert {**written, "$schema": "./schema.json"} == json.loads(
        (ROOT / "config/auto.config.json").read_text(encoding="utf-8")
    )
    assert schema.read_text(encoding="utf-8") == (ROOT / "config" / "schema.json").read_text(
        encoding="utf-8"
    )
    assert qtm("config", "check", "own/mine.json").code == 0


def test_nothing_that_is_there_is_overwritten_unless_that_is_asked_for(
    qtm: Run, tmp_path: Path
) -> None:
    for name in ("query-transform.config.json", "qtmiddleware.schema.json"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    named = qtm("config", "init", "auto")
    assert (named.code, "write --preset auto" in named.err) == (2, True)
    refused = qtm("config", "init")
    assert (
        refused.code,
        "already exists; name another file, or overwrite it with --force" in refused.err,
    ) == (
        2,
        True,
    )
    assert qtm("config", "init", "rules.json", "--preset", "rules").code == 0
    assert {it.name: it.read_text() == "mine" for it in tmp_path.iterdir()} == {
        "query-transform.config.json": True,
        "qtmiddleware.schema.json": True,
        "rules.json": False,
    }
    assert qtm("config", "init", "--force").code == 0
    assert all("mine" not in it.read_text(encoding="utf-8") for it in tmp_path.iterdir())


def test_presets_are_listed_and_taken_as_a_config(qtm: Run) -> None:
    listed = {
        row["name"]: row["description"]
        for row in json.loads(qtm("config", "presets", "--json").out)
    }
    assert tuple(listed) == PRESETS
    assert all(listed.values())
    assert '"combined"  (preset words)' in qtm("config", "show", "words").out
    assert '"combined"  (preset words)' in qtm("config", "show", QTM_CONFIG="words").out
    assert (
        qtm("preprocess", "--config", "rules", "Does Jaco have any health concerns?").out
        == "jaco health concerns\n"
    )


def test_a_file_in_a_folder_does_not_take_the_place_of_a_preset(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "auto").write_text('{"topK": 7}', encoding="utf-8")
    for command in (("config", "show"), ("config", "show", "--config")):
        assert "4  (default)" in qtm(*command, "auto").out
    assert "7  (file ./auto)" in qtm("config", "show", "./auto").out


def test_the_version_is_shown(qtm: Run) -> None:
    assert qtm("--version").out.startswith("qtmiddleware 0.")


def test_a_model_is_asked_where_its_address_is_set(qtm: Run, model_server: ModelServer) -> None:
    model_server.reply = reply = {"rewrite": "Rayleigh scattering of sunlight in the atmosphere"}
    ended = qtm(
        "transform",
        "-t",
        "rewrite",
        "--json",
        "Why is the sky blue?",
        QTM_LLM_BASE_URL=model_server.url,
    )
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)[0]["rewrite"] == reply["rewrite"]


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    command = f'{sys.executable} -c "from qtmiddleware.kit.cli import main; main()" config show | head -n 1'
    command = f"set -o pipefail; {command}"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=200, check=False
    )
    assert ended.stderr == b""


def test_ctrl_c_ends_cleanly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from qtmiddleware.kit.cli import main; main()", "preprocess"],
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
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert b"Traceback" not in err
