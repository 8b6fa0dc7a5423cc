"""``qtm transform --file``: every question of a file once, whatever the service or the file is like."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bulk_world import (
    LIMITS,
    PROGRAM,
    TRANSFORM,
    RewritingService,
    make_questions,
    read_records,
    rewrite,
    write_questions,
)
from tests.support.command_line import Ended, read_plain_environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]


@pytest.fixture
def transform(qtm: Run, qtm_process: Run, service: RewritingService) -> Run:
    """Run the command over ``queries.jsonl`` to its end."""

    def run(*options: str, has_own_process: bool = False) -> Ended:
        command = qtm_process if has_own_process else qtm
        return command(*TRANSFORM, *LIMITS, *options, QTM_LLM_BASE_URL=service.url)

    return run


@pytest.fixture
def start(service: RewritingService, tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """The command under way, after the service was asked *count* times more."""

    def run(*options: str, count: int = 0) -> subprocess.Popen[bytes]:
        command = [*PROGRAM, *TRANSFORM, *LIMITS, *options]
        environment = {**read_plain_environment(), "QTM_LLM_BASE_URL": service.url}
        pipe, wanted = subprocess.PIPE, len(service.bodies) + count
        running = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )  # fmt: skip
        wait_until(lambda: len(service.bodies) >= wanted or running.poll() is not None)
        return running

    return run


def test_every_question_is_transformed_once_and_a_second_run_asks_nothing(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    questions = ["Why?", "Who?"] * 10
    write_questions(tmp_path / "queries.jsonl", questions)
    ended = transform()
    assert ended.code == 0, ended.err
    # Of equal questions one is asked.
    assert ended.out == "20 questions: 20 transformed, 0 failed, 0 done before\n"
    records = {it["id"]: it["rewrite"] for it in read_records(tmp_path / "out.jsonl")}
    assert records == {f"q{number}": rewrite(it) for number, it in enumerate(questions, 1)}
    report = json.loads(transform("--json").out)
    assert report == {"total": 20, "before": 20, "made": 0, "failed": {}}
    assert sorted(service.questions) == ["Who?", "Why?"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--file", "q.txt"), "--file and --out need each other"),
        (("--engine", "ray"), "--engine needs both"),
        (("Why?", "--file", "q.txt", "--out", "o.jsonl"), "questions or --file, not both"),
        (("--file", "no.txt", "--out", "o.jsonl"), "no.txt cannot be read: No such file"),
        (("--file", "q.txt", "--out", "q.txt"), "must not be the input"),
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
    service.limit, service.window, concurrency = 15, 0.5, 6
    write_questions(tmp_path / "queries.jsonl", make_questions(100))
    ended = transform("--concurrency", str(concurrency))
    assert ended.code == 0, ended.err
    assert len([it["rewrite"] for it in read_records(tmp_path / "out.jsonl")]) == 100
    # Those under way when the first was refused, and no other before the next window.
    assert max(service.windows.values()) <= service.limit + concurrency
    assert 0 < len(service.bodies) - 100 <= concurrency * len(service.windows)


def test_what_a_spent_budget_leaves_is_asked_by_the_next_run(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    write_questions(tmp_path / "queries.jsonl", make_questions(60))
    # What a process has spent counts for all of it.
    ended = transform("--set", "budget.maxTokens=4000", has_own_process=True)
    assert ended.code == 1
    assert "over_budget); run the same command to retry" in ended.err
    # 120 each, and before one is asked there is room for the most it may cost.
    assert 1 <= len(read_records(tmp_path / "out.jsonl")) == len(service.bodies) <= 33
    assert transform("--set", "budget.maxTokens=40000", has_own_process=True).code == 0
    assert len(service.bodies) == 60


def test_ctrl_c_leaves_the_file_whole_and_says_how_to_go_on(
    transform: Run, start: Callable[..., subprocess.Popen[bytes]], service: RewritingService, tmp_path: Path,
) -> None:  # fmt: skip
    service.seconds = 0.05
    write_questions(tmp_path / "queries.jsonl", make_questions(80))
    running = start("--concurrency", "4", count=20)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=200)
    assert running.returncode == 130
    done = read_records(tmp_path / "out.jsonl")
    assert f"{len(done)} lines in out.jsonl; run the same command to continue" in err.decode()
    assert b"Traceback" not in err
    assert transform().code == 0
    assert len({it["id"] for it in read_records(tmp_path / "out.jsonl")}) == 80
