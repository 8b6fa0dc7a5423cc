"""``qtm transform --file``: every question of a file once, whatever the service or the file is like."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bulk_world import (
    RewritingService,
    build_command,
    build_environment,
    make_questions,
    read_records,
    rewrite,
    start,
    wait_for_requests,
    write_questions,
)
from tests.support.command_line import Ended
from tests.support.model_server import failure
from tests.support.terminal import Terminal

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]


@pytest.fixture
def transform(qtm: Run, qtm_process: Run, service: RewritingService) -> Run:
    """Run the command over ``queries.jsonl`` to its end."""

    def run(*options: str, text: bytes = b"", has_own_process: bool = False) -> Ended:
        command = qtm_process if has_own_process else qtm
        return command(*build_command(*options)[3:], text=text, QTM_LLM_BASE_URL=service.url)

    return run


def test_every_question_is_transformed_once_and_a_second_run_asks_nothing(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    questions = ["Why?", "Who?"] * 10
    write_questions(tmp_path / "queries.jsonl", questions)
    ended = transform()
    assert ended.code == 0, ended.err
    # Of equal questions one is asked.
    assert ended.out.startswith(
        "20 questions: 20 transformed, 0 failed, 0 done before\n2 calls, 200 tokens read, 40 written"
    )
    records = {it["id"]: it for it in read_records(tmp_path / "out.jsonl")}
    assert {id_: it["rewrite"] for id_, it in records.items()} == {
        f"q{number}": rewrite(question) for number, question in enumerate(questions, 1)
    }
    report = json.loads(transform("--json").out)
    assert (report["total"], report["before"], report["made"], report["calls"]) == (20, 20, 0, 0)
    assert sorted(service.questions) == ["Who?", "Why?"]


def test_a_table_is_read_by_its_columns(qtm: Run, tmp_path: Path) -> None:
    text = "question,id\nDoes Jaco have any health concerns?,p-1\n"
    (tmp_path / "q.csv").write_text(text, "utf-8")
    ended = qtm("transform", "-t", "none", "--file", "q.csv", "--out", "out.jsonl")
    assert ended.code == 0, ended.err
    (record,) = read_records(tmp_path / "out.jsonl")
    assert (record["id"], record["preprocessed"], record["calls"]) == (
        "p-1",
        "jaco health concerns",
        0,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--file", "q.txt"), "--file and --out need each other"),
        (("--engine", "ray"), "--engine needs both"),
        (("Why?", "--file", "q.txt", "--out", "o.jsonl"), "must stand in the file"),
        (("--file", "no.txt", "--out", "o.jsonl"), "no.txt cannot be read: No such file"),
        (("--file", "q.txt", "--out", "q.txt"), "must not be the input"),
        (("--file", "q.txt", "--out", "."), ". cannot be written: Is a directory"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    qtm: Run, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "q.txt").write_text("Why?\n", "utf-8")
    ended = qtm("transform", *options, OPENAI_API_KEY="sk-none")
    assert ended.code == 2, ended.err
    assert said in ended.err
    assert (tmp_path / "q.txt").read_text("utf-8") == "Why?\n"


def test_a_rate_limit_is_kept_to_and_costs_no_question(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    concurrency = 6
    service.limit, service.window = 15, 0.5
    write_questions(tmp_path / "queries.jsonl", make_questions(100))
    ended = transform("--concurrency", str(concurrency))
    assert ended.code == 0, ended.err
    assert all(it["rewrite"] for it in read_records(tmp_path / "out.jsonl"))
    # Those under way when the first was refused, and no other before the next window.
    assert max(service.windows.values()) <= service.limit + concurrency
    refused = len(service.bodies) - 100
    assert 0 < refused <= concurrency * len(service.windows)


def test_a_refused_key_ends_the_run_at_once(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    rewriting, service.reply = service.reply, failure(401)
    write_questions(tmp_path / "queries.jsonl", make_questions(200))
    ended = transform("--concurrency", "4")
    assert ended.code == 1
    assert "0 lines in out.jsonl; run the same command to continue" in ended.err
    assert "rejected the key" in ended.err
    assert len(service.bodies) <= 4
    service.reply = rewriting
    assert transform().code == 0
    assert len(read_records(tmp_path / "out.jsonl")) == 200


def test_a_spent_budget_ends_the_run_with_what_to_do(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    write_questions(tmp_path / "queries.jsonl", make_questions(60))
    # What a process has spent counts for all of it.
    ended = transform("--set", "budget.maxTokens=4000", has_own_process=True)
    assert ended.code == 1
    assert "run the same command to continue, with a higher budget" in ended.err
    assert "budget.maxTokens allows 4,000 tokens in 24 hours" in ended.err
    done = read_records(tmp_path / "out.jsonl")
    # 120 each, and before one is asked there is room for the most it may cost.
    assert 1 <= len(done) <= 33
    assert len(service.bodies) == len(done)
    assert transform("--set", "budget.maxTokens=40000", has_own_process=True).code == 0
    assert len(service.bodies) == 60


def test_ctrl_c_leaves_the_file_whole_and_says_how_to_go_on(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    service.seconds = 0.05
    write_questions(tmp_path / "queries.jsonl", make_questions(80))
    running = start(tmp_path, service.url, "--concurrency", "4")
    assert wait_for_requests(service, 20, running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=200)
    assert running.returncode == 130
    done = read_records(tmp_path / "out.jsonl")
    assert f"{len(done)} lines in out.jsonl; run the same command to continue" in err.decode()
    assert b"Traceback" not in err
    assert transform().code == 0
    assert len({it["id"] for it in read_records(tmp_path / "out.jsonl")}) == 80


def test_a_second_run_on_one_output_is_refused(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    service.holds = True
    write_questions(tmp_path / "queries.jsonl", make_questions(3))
    running = start(tmp_path, service.url)
    assert wait_for_requests(service, 1, running)
    ended = transform()
    assert ended.code == 1
    assert "another run is writing to out.jsonl" in ended.err
    service.holds = False
    service.released.set()
    running.communicate(timeout=200)
    assert running.returncode == 0
    assert len(read_records(tmp_path / "out.jsonl")) == 3


def test_a_full_disk_ends_the_run_and_costs_nothing_that_is_done(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    write_questions(tmp_path / "queries.jsonl", make_questions(300))
    # The system refuses what goes beyond so many kilobytes a file, as it does beyond the end of a
    # disk.
    limited = ["bash", "-c", 'ulimit -f 64; exec "$@"', "-", *build_command()]
    ended = subprocess.run(
        limited,
        cwd=tmp_path,
        env=build_environment(service.url),
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert b"out.jsonl cannot be written: File too large; run the same command" in ended.stderr
    assert 50 < (tmp_path / "out.jsonl").read_bytes().count(b"\n") < 300
    assert transform().code == 0
    assert len({it["id"] for it in read_records(tmp_path / "out.jsonl")}) == 300


def test_a_terminal_sees_how_far_it_is(service: RewritingService, tmp_path: Path) -> None:
    service.seconds = 0.1
    write_questions(tmp_path / "queries.jsonl", make_questions(40))
    options = build_command("--concurrency", "2")[3:]
    with Terminal(*options, folder=tmp_path, environ=build_environment(service.url)) as terminal:
        terminal.wait_for("transforming", "/40", seconds=150)
        terminal.wait_for("40 questions: 40 transformed", seconds=150)
        assert terminal.ended(150) == 0
