"""``qtm bench`` on small data sets, with real vectors and recorded replies or a local service."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.evaluation import FREE
from qtmiddleware.kit.evaluation.bench import CACHE
from tests.support.bench_world import bridges_data, mode_of, reply, write_data, write_recording
from tests.support.command_line import Ended
from tests.support.model_server import ModelServer, Said, failure
from tests.support.testset_world import bridges
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
DATA = bridges_data()
RECORDED = ("rewrite", "step_back", "hyde", "sub_queries")


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_data(tmp_path / "set", DATA)
    return "set"


@pytest.fixture
def recording(tmp_path: Path) -> str:
    write_recording(tmp_path / "r.jsonl", DATA, *RECORDED)
    return "r.jsonl"


@pytest.fixture
def chat(model_server: ModelServer) -> ModelServer:
    model_server.reply = reply
    return model_server


def names(plain: dict[str, Any]) -> list[str]:
    return [system["name"] for system in plain["systems"]]


def test_recorded_replies_are_compared_and_reported(
    qtm: Run, data: str, recording: str, tmp_path: Path
) -> None:
    ended = qtm(
        "bench",
        "--data",
        data,
        "--recordings",
        recording,
        "--report",
        "out/report.json",
    )
    assert ended.code == 0, ended.err
    assert ended.out.startswith("set: 6 questions, 12 passages\n")
    table = [line.split("  ")[0].strip() for line in ended.out.splitlines()]
    assert "auto" in table
    assert "…" not in ended.out
    assert "\x1b" not in ended.out + ended.err
    assert "the recording has no replies for them: keywords, multi_query." in ended.err
    assert "The report is in out/report.json." in ended.err.replace(os.sep, "/")
    plain = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "multi_query" not in names(plain)
    assert plain["verdict"] in ended.out


def test_the_ending_of_a_report_is_its_format(qtm: Run, data: str, tmp_path: Path) -> None:
    asked = ("bench", "--data", data, "--systems", "rules", "--report")
    for name, start in (("r.md", "# "), ("r.html", "<!DOCTYPE html>")):
        assert qtm(*asked, name).code == 0
        assert (tmp_path / name).read_text("utf-8").startswith(start)
    ended = qtm(*asked, "report")
    assert (ended.code, ended.out) == (2, "")
    assert "report must end with .md or .json or .html" in ended.err


def test_systems_are_chosen_by_name_and_a_program_may_read_what_came_of_them(
    qtm: Run, data: str, recording: str
) -> None:
    chosen = ("--systems", "rules,auto", "--json")
    plain = json.loads(qtm("bench", "--data", data, "--recordings", recording, *chosen).out)
    assert names(plain) == ["off", "rules", "auto"]
    assert set(plain["systems"][2]["perQuery"]["nDCG@10"]) == {
        question.id for question in DATA.questions
    }
    assert (set(plain["fingerprints"]), plain["model"]) == (
        {"questions", "judgements", "passages"},
        "recorded:r",
    )
    raw, _, gated = plain["systems"]
    assert raw["searchesPerQuestion"] == 1.0 <= gated["searchesPerQuestion"]
    assert raw["readUsdPerThousand"] is None


def test_searches_cost_what_is_said_of_them(qtm: Run, data: str) -> None:
    ended = qtm("bench", "--data", data, "--systems", "rules", "--set", "store.readPrice=16")
    assert ended.code == 0, ended.err
    heading, rules = (
        next(it for it in ended.out.splitlines() if it.startswith(name))
        for name in ("system", "rules")
    )
    assert "reads $/1k" in heading
    assert "$0.016" in rules


def test_a_system_of_which_nothing_was_recorded_is_refused_and_not_told_to_be_free(
    qtm: Run, data: str, recording: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.json").write_text('{"transformationType": "keywords"}')
    for named, asked in (
        ("multi_query", ("--systems", "rules,multi_query")),
        ("mine", ("-c", "mine.json")),
    ):
        ended = qtm("bench", "--data", data, "--recordings", recording, *asked)
        assert (ended.code, ended.out) == (2, "")
        assert (
            ended.err.splitlines()[-1]
            == f"qtm: the recording has no replies for {named}; leave it out"
        )


def test_without_a_model_what_needs_none_is_compared(qtm: Run, data: str) -> None:
    ended = qtm("bench", "--data", data, "--json", "--questions", "3")
    plain = json.loads(ended.out)
    assert names(plain) == list(FREE)
    assert (plain["questions"], plain["model"]) == (3, None)
    assert "No language model was called" in ended.err
    assert "3 of 6 questions, drawn with seed 0." in plain["notes"]


def test_config_files_are_systems_of_their_own(
    qtm: Run, data: str, recording: str, tmp_path: Path
) -> None:
    log = {"log": {"path": "queries.jsonl"}}
    (tmp_path / "mine.json").write_text(json.dumps({"transformationType": "hyde", **log}))
    files = ("-c", "mine.json", "-c", "off")
    ended = qtm(
        "bench",
        "--data",
        data,
        "--recordings",
        recording,
        *files,
        "--systems",
        "off",
        "--json",
    )
    plain = json.loads(ended.out)
    assert names(plain) == ["off", "mine", "preset off"]
    assert [system["llmCalls"] for system in plain["systems"]] == [0, 6, 0]
    assert not (tmp_path / "queries.jsonl").exists()


def test_what_a_service_replies_is_recorded_and_replayed(
    qtm: Run, data: str, chat: ModelServer
) -> None:
    asked = ("bench", "--data", data, "--systems", "multi_query,balanced", "--json")
    live = qtm(*asked, "--record", "new/r.jsonl", QTM_LLM_BASE_URL=chat.url)
    assert live.code == 0, live.err
    assert Counter(map(mode_of, chat.bodies)) == {"multi_query": 6, "combined": 6}
    replayed = qtm(*asked, "--recordings", "new/r.jsonl")
    first, second = (json.loads(ended.out)["systems"] for ended in (live, replayed))
    assert [system["perQuery"] for system in first] == [system["perQuery"] for system in second]
    assert first[2]["inputTokens"] == 6 * chat.usage["prompt_tokens"]
    assert second[2]["costUsd"] > 0


def test_a_test_set_is_written_and_benched(qtm: Run, chat: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for passage in bridges(6):
        (tmp_path / "docs" / f"{passage.id[:-2]}.txt").write_text(passage.text)
    asked = ("testset", "docs", "--out", "made", "--count", "4")
    ended = qtm(*asked, QTM_LLM_BASE_URL=chat.url)
    assert ended.code == 0, ended.err
    assert "4 questions about 6 passages are in made" in ended.err
    plain = json.loads(qtm("bench", "--data", "made", "--json").out)
    assert (plain["dataset"], plain["questions"]) == ("made", 4)
    assert any("synthetic" in note for note in plain["notes"])
    calls = len(chat.bodies)
    again = qtm(*asked, QTM_LLM_BASE_URL=chat.url)
    assert (again.code, len(chat.bodies)) == (2, calls)
    assert "made already exists" in again.err
    for named, said in (("docs", "No language model"), ("none", "No language model")):
        assert said in qtm("testset", named, "--out", "new").err


def test_a_model_that_refuses_the_key_ends_it_at_once(
    qtm: Run, data: str, chat: ModelServer
) -> None:
    chat.reply = failure(401)
    ended = qtm("bench", "--data", data, "--systems", "rewrite,hyde", QTM_LLM_BASE_URL=chat.url)
    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith(
        "qtm: gpt-6-luna replied to none of the first 6 questions (unauth"
    )
    assert ended.out == ""
    assert len(chat.bodies) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data", "nowhere"), "nowhere/corpus.jsonl cannot be read"),
        (("--systems", "off,bm25"), "there is no system 'bm25'; the systems are: off; "),
        (("--systems", "balanced"), "a language model is needed for balanced"),
        (("--recordings", "none.jsonl"), "none.jsonl cannot be read"),
        (("-c", "set/a.json", "-c", "a.json"), "two config files have the same name"),
        (("-c", "rules.json"), "has the name of a system"),
        (("-c", "a.json", "-c", "b.json"), "must have the same embeddingModel"),
        (("--questions", "0"), "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    qtm: Run, data: str, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "others.jsonl").write_text('{"_id": "z", "rewrite": "x"}\n')
    for name in ("a", "rules", "set/a"):
        (tmp_path / f"{name}.json").write_text("{}")
    (tmp_path / "b.json").write_text('{"embeddingModel": "text-embedding-3-small"}')
    ended = qtm("bench", "--data", data, *arguments)
    assert ended.code == 2
    assert said.replace("nowhere/", f"nowhere{os.sep}") in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_a_report_that_cannot_be_written_is_told_before_anything_is_measured(
    qtm: Run, data: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    for named in ("file", "out"):
        ended = qtm("bench", "--data", data, "--report", str(Path(named) / "report.html"))
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"qtm: {named}")
        assert "cannot be written" in ended.err
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / ".qtm").exists()


def count_kept_replies(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        count: int = connection.execute(
            "SELECT count(*) FROM cached WHERE CAST(value AS TEXT) LIKE '{\"text\": %'"
        ).fetchone()[0]
        return count


@pytest.mark.skipif(os.name != "posix", reason="processes are signalled as on POSIX here")
def test_ctrl_c_loses_no_reply_that_had_come(data: str, chat: ModelServer, tmp_path: Path) -> None:
    numbers = count(1)

    def three(body: dict[str, Any]) -> Said:
        if next(numbers) > 3:
            chat.wait()
        return reply(body)

    chat.reply = three
    command = [
        sys.executable,
        "-c",
        "from qtmiddleware.kit.cli import main; main()",
        "bench",
        "--data",
        data,
    ]
    options = ["--systems", "rewrite", "--json"]
    environ = {**os.environ, "QTM_LLM_BASE_URL": chat.url}
    running = subprocess.Popen(
        [*command, *options],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(
        lambda: len(chat.bodies) == 6 and count_kept_replies(tmp_path / CACHE / "cache.sqlite") == 3
    )
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=200)
    chat.released.set()
    assert (running.returncode, said.splitlines()[-1]) == (130, "qtm: interrupted")
    asked = len(chat.bodies)
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert [system["llmCalls"] for system in json.loads(done.stdout)["systems"]] == [0, 6]
    assert len(chat.bodies) - asked == 3


@pytest.mark.parametrize("command", [("demo",), ("bench", "--data", ".")])
def test_a_missing_extra_is_noticed_before_anything_is_done(
    qtm_process: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "ir_measures.py").write_text("raise ImportError('none')")
    ended = qtm_process(*command)
    assert (ended.code, ended.out) == (1, "")
    assert "qtmiddleware[eval]" in ended.err
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
        "ir_measures.py"
    ]
