"""``qtm bench`` on small data sets, with real vectors and recorded replies or a local service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.evaluation.systems import FREE
from tests.support.bench_world import bridges_data, mode_of, reply, write_data, write_recording
from tests.support.command_line import Ended
from tests.support.model_server import ModelServer, Said
from tests.support.testset_world import bridges
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
DATA = bridges_data()
MAIN = "from qtmiddleware.kit.cli import main; main()"


@pytest.fixture
def bench(qtm: Run, tmp_path: Path) -> Run:
    """Run ``qtm bench`` in a folder with a data set and a recording."""
    write_data(tmp_path / "set", DATA)
    write_recording(tmp_path / "r.jsonl", DATA, "rewrite", "step_back", "hyde", "sub_queries")

    def run(arguments: str, **environ: str) -> Ended:
        return qtm("bench", "--data", "set", *arguments.split(), **environ)

    return run


@pytest.fixture
def chat(model_server: ModelServer) -> ModelServer:
    model_server.reply = reply
    return model_server


def read_systems(ended: Ended) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err
    systems: list[dict[str, Any]] = json.loads(ended.out)["systems"]
    return systems


def names(systems: list[dict[str, Any]]) -> list[str]:
    return [system["name"] for system in systems]


def test_recorded_replies_are_compared_and_reported(bench: Run, tmp_path: Path) -> None:
    ended = bench("--recordings r.jsonl --report out/report.json")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("set: 6 questions, 12 passages\n")
    assert "\nauto " in ended.out
    assert "\x1b" not in ended.out + ended.err
    assert "The report is in out/report.json." in ended.err.replace(os.sep, "/")
    plain = json.loads((tmp_path / "out" / "report.json").read_text())
    assert plain["verdict"] in ended.out
    for name, start in (("r.md", "# "), ("r.html", "<!DOCTYPE html>")):
        assert bench(f"--systems rules --report {name}").code == 0
        assert (tmp_path / name).read_text("utf-8").startswith(start)


def test_systems_are_chosen_by_name_or_by_what_they_need(bench: Run) -> None:
    ended = bench("--recordings r.jsonl --systems rules,auto --json")
    off, rules, auto = read_systems(ended)
    assert names([off, rules, auto]) == ["off", "rules", "auto"]
    assert set(auto["perQuery"]["nDCG@10"]) == {question.id for question in DATA.questions}
    assert off["searchesPerQuestion"] == 1.0 <= auto["searchesPerQuestion"]
    plain = json.loads(ended.out)
    assert set(plain["fingerprints"]) == {"questions", "judgements", "passages"}
    assert plain["model"] == "recorded:r"
    ended = bench("--json --questions 3")
    assert names(read_systems(ended)) == list(FREE)
    assert "No language model was called" in ended.err
    plain = json.loads(ended.out)
    assert (plain["questions"], plain["model"]) == (3, None)
    assert "3 of 6 questions, drawn with seed 0." in plain["notes"]


def test_a_config_is_one_more_system(bench: Run, tmp_path: Path) -> None:
    mine = {"transformationType": "hyde", "log": {"path": "queries.jsonl"}}
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    ended = bench("--recordings r.jsonl -c mine.json --systems off --json")
    systems = read_systems(ended)
    assert names(systems) == ["off", "yours"]
    assert [system["llmCalls"] for system in systems] == [0, 6]
    assert not (tmp_path / "queries.jsonl").exists()


def test_what_a_service_replies_is_recorded_and_replayed(bench: Run, chat: ModelServer) -> None:
    asked = "--systems multi_query,balanced --json"
    live = bench(f"{asked} --record new/r.jsonl", QTM_LLM_BASE_URL=chat.url)
    assert Counter(map(mode_of, chat.bodies)) == {"multi_query": 6, "combined": 6}
    first, second = map(read_systems, (live, bench(f"{asked} --recordings new/r.jsonl")))
    assert [system["perQuery"] for system in first] == [system["perQuery"] for system in second]
    assert first[2]["llmCalls"] == second[2]["llmCalls"] == 6
    assert second[2]["costUsd"] > 0


def test_a_test_set_is_written_and_benched(qtm: Run, chat: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for passage in bridges(6):
        (tmp_path / "docs" / f"{passage.id[:-2]}.txt").write_text(passage.text)
    asked = ("testset", "docs", "--out", "made", "--count", "4")
    assert "No language model" in qtm(*asked).err
    ended = qtm(*asked, QTM_LLM_BASE_URL=chat.url)
    assert ended.code == 0, ended.err
    assert "Wrote 4 questions about 6 passages to made" in ended.err
    plain = json.loads(qtm("bench", "--data", "made", "--json").out)
    assert (plain["dataset"], plain["questions"]) == ("made", 4)
    assert any("synthetic" in note for note in plain["notes"])
    calls = len(chat.bodies)
    again = qtm(*asked, QTM_LLM_BASE_URL=chat.url)
    assert (again.code, len(chat.bodies), "made already exists" in again.err) == (2, calls, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--data nowhere", "corpus.jsonl cannot be read"),
        ("--systems off,bm25", "there is no system 'bm25'; the systems are: off; "),
        ("--systems balanced", "a language model is needed for balanced"),
        ("--recordings none.jsonl", "none.jsonl cannot be read"),
        ("--report report", "report must end with .md or .json or .html"),
        ("--report a.json/r.html", "cannot be written"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    bench: Run, tmp_path: Path, arguments: str, said: str
) -> None:
    (tmp_path / "a.json").write_text("{}")
    ended = bench(arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.skipif(os.name != "posix", reason="processes are signalled as on POSIX here")
def test_ctrl_c_loses_no_recorded_reply(chat: ModelServer, tmp_path: Path) -> None:
    write_data(tmp_path / "set", DATA)
    recording, numbers = tmp_path / "r.jsonl", count(1)

    def three(body: dict[str, Any]) -> Said:
        if next(numbers) > 3:
            chat.wait()
        return reply(body)

    chat.reply = three
    asked = ("bench", "--data", "set", "--systems", "rewrite", "--record", "r.jsonl")
    running = subprocess.Popen(
        [sys.executable, "-c", MAIN, *asked],
        cwd=tmp_path,
        env={**os.environ, "QTM_LLM_BASE_URL": chat.url},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: recording.is_file() and recording.read_bytes().count(b"\n") == 3)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=200)
    chat.released.set()
    assert (running.returncode, said.splitlines()[-1]) == (130, "qtm: interrupted")
    assert recording.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("command", ["demo", "bench --data ."])
def test_a_missing_extra_is_noticed_before_anything_is_done(
    qtm_process: Run, tmp_path: Path, command: str
) -> None:
    (tmp_path / "ir_measures.py").write_text("raise ImportError('none')")
    ended = qtm_process(*command.split())
    assert (ended.code, ended.out) == (1, "")
    assert "qtmiddleware[eval]" in ended.err
    assert {path.name for path in tmp_path.iterdir()} <= {"ir_measures.py", "__pycache__"}
