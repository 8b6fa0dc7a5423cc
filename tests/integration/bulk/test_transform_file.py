"""``qtm transform --file``: every question of a file once, whatever the service or the file is like."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
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
    questions = make_questions(30)
    write_questions(tmp_path / "queries.jsonl", questions)
    ended = transform()
    assert ended.code == 0, ended.err
    assert ended.out.startswith(
        "30 lines: 30 asked, 0 without a call\n30 calls, 3,000 tokens read, 600 written, $"
    )
    records = sorted(read_records(tmp_path / "out.jsonl"), key=lambda it: it["line"])
    assert [it["line"] for it in records] == list(range(1, 31))
    assert [(it["id"], it["query"], it["rewrite"]) for it in records] == [
        (f"q{number}", it, rewrite(it)) for number, it in enumerate(questions, 1)
    ]
    assert records[0]["preprocessed"] == "company 1 sell in europe"
    assert (records[0]["calls"], records[0]["input_tokens"], records[0]["output_tokens"]) == (
        1,
        100,
        20,
    )
    ended = transform("--json")
    report = json.loads(ended.out)
    assert (report["total"], report["before"], report["asked"], report["calls"]) == (30, 30, 0, 0)
    assert len(service.bodies) == 30


def test_lines_that_are_no_questions_are_named_and_the_others_done(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    lines = [b'{"query": "Why?"}', b'{"query": "secret', b"", b'"\xff"', b'{"text": "Who?"}']
    (tmp_path / "queries.jsonl").write_bytes(b"\n".join(lines))
    ended = transform()
    assert ended.code == 1
    assert (
        "2 of 4 lines of queries.jsonl could not be read: line 2: not JSON; line 4: not UTF-8"
        in ended.err
    )
    assert "secret" not in ended.out + ended.err
    assert sorted(it["line"] for it in read_records(tmp_path / "out.jsonl")) == [1, 5]
    (tmp_path / "queries.jsonl").write_bytes(
        b"\n".join([lines[0], b'{"query": "And when?"}', b"", b'"What?"', lines[4]])
    )
    assert transform().code == 0
    assert sorted(service.questions) == ["And when?", "What?", "Who?", "Why?"]


def test_equal_questions_are_asked_once(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    write_questions(tmp_path / "queries.jsonl", ["Why?", "Who?"] * 20)
    ended = transform()
    assert ended.code == 0, ended.err
    assert sorted(service.questions) == ["Who?", "Why?"]
    assert "40 lines: 2 asked, 38 without a call" in ended.out
    assert Counter(it["rewrite"] for it in read_records(tmp_path / "out.jsonl")) == {
        rewrite("Why?"): 20,
        rewrite("Who?"): 20,
    }


def test_standard_input_is_read_and_gone_on_with(
    qtm: Run, service: RewritingService, tmp_path: Path
) -> None:
    command = ("transform", "-t", "rewrite", "--file", "-", "--out", "out.jsonl")
    assert qtm(*command, text=b"Why?\nWho?\n", QTM_LLM_BASE_URL=service.url).code == 0
    ended = qtm(*command, text=b"Why?\nWho?\nWhen?\n", QTM_LLM_BASE_URL=service.url)
    assert "3 lines: 1 asked, 0 without a call, 2 done before" in ended.out
    assert [it["query"] for it in read_records(tmp_path / "out.jsonl")][2:] == ["When?"]
    ended = qtm(*command, text=b"What?\n", QTM_LLM_BASE_URL=service.url)
    assert ended.code == 2
    assert "line 1 of the input is not the question that the output holds" in ended.err


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


def test_an_outage_is_waited_for(transform: Run, service: RewritingService, tmp_path: Path) -> None:
    rewriting, answers = service.reply, 0

    def fail_at_first(body: dict[str, object]) -> object:
        nonlocal answers
        answers += 1
        return failure(503, headers={"retry-after-ms": "20"}) if answers <= 30 else rewriting(body)  # type: ignore[operator]

    service.reply = fail_at_first  # type: ignore[assignment]
    write_questions(tmp_path / "queries.jsonl", make_questions(10))
    ended = transform()
    assert ended.code == 0, ended.err
    assert len(read_records(tmp_path / "out.jsonl")) == 10


def test_a_refused_key_ends_the_run_at_once(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    rewriting, service.reply = service.reply, failure(401)
    write_questions(tmp_path / "queries.jsonl", make_questions(200))
    ended = transform("--concurrency", "4")
    assert ended.code == 1
    assert "0 lines in out.jsonl; run the same command to continue" in ended.err
    assert "the run was stopped" in ended.err
    assert "rejected the key" in ended.err
    assert len(service.bodies) <= 4
    service.reply = rewriting
    assert transform().code == 0
    assert len(read_records(tmp_path / "out.jsonl")) == 200


def test_a_model_that_is_not_there_ends_the_run(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    service.reply = failure(404, code="model_not_found")
    write_questions(tmp_path / "queries.jsonl", make_questions(200))
    ended = transform("--concurrency", "2")
    assert ended.code == 1
    assert "model_not_found" in ended.err
    # Each of them steps down by what it is refused before it gives up.
    assert len(service.bodies) <= 60


def test_a_spent_budget_ends_the_run_with_what_to_do(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    write_questions(tmp_path / "queries.jsonl", make_questions(60))
    # What a process has spent counts for all of it.
    ended = transform("--set", "budget.maxTokens=4000", has_own_process=True)
    assert ended.code == 1
    said = "budget.maxTokens allows 4,000 tokens in 24 hours, and the budget is spent"
    assert said in ended.err
    done = read_records(tmp_path / "out.jsonl")
    # 120 each, and before one is asked there is room for the most it may cost.
    assert 15 <= len(done) <= 33
    assert len(service.bodies) == len(done)
    assert transform("--set", "budget.maxTokens=40000", has_own_process=True).code == 0
    assert len(service.bodies) == 60


def test_a_question_the_model_refuses_is_told_and_asked_again_by_the_next_run(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    questions = make_questions(6)
    service.refused = {questions[2]}
    write_questions(tmp_path / "queries.jsonl", questions)
    ended = transform()
    assert ended.code == 1
    assert "1 question failed (1 refused); run the same command to retry" in ended.err
    lines = sorted(it["line"] for it in read_records(tmp_path / "out.jsonl"))
    assert lines == [1, 2, 4, 5, 6]
    service.refused = set()
    service.bodies.clear()
    ended = transform()
    assert ended.code == 0, ended.err
    assert service.questions == [questions[2]]
    assert sorted(it["line"] for it in read_records(tmp_path / "out.jsonl")) == [1, 2, 3, 4, 5, 6]


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
    assert sorted(it["line"] for it in read_records(tmp_path / "out.jsonl")) == list(range(1, 81))


def test_a_second_run_on_one_output_is_refused(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    service.holds = True
    write_questions(tmp_path / "queries.jsonl", make_questions(3))
    running = start(tmp_path, service.url)
    assert wait_for_requests(service, 1, running)
    ended = transform()
    assert ended.code == 1
    assert "another run is writing to this output" in ended.err
    service.holds = False
    service.released.set()
    running.communicate(timeout=200)
    assert running.returncode == 0
    assert len(read_records(tmp_path / "out.jsonl")) == 3


def test_another_config_is_refused_before_anything_is_asked(
    transform: Run, service: RewritingService, tmp_path: Path
) -> None:
    write_questions(tmp_path / "queries.jsonl", make_questions(3))
    assert transform().code == 0
    ended = transform("--set", "transformationModel=gpt-6-mini")
    assert ended.code == 2
    assert "out.jsonl was started with another config" in ended.err
    assert "delete it, or name another --out" in ended.err
    assert len(service.bodies) == 3
    (tmp_path / "out.jsonl").unlink()
    assert transform("--set", "transformationModel=gpt-6-mini").code == 0
    assert len(service.bodies) == 6


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
    assert b"out.jsonl cannot be written: File too large; its lines are complete" in ended.stderr
    done = read_records(tmp_path / "out.jsonl")
    assert 50 < len(done) < 300
    assert transform().code == 0
    assert sorted(it["line"] for it in read_records(tmp_path / "out.jsonl")) == list(range(1, 301))


def test_without_a_model_the_keywords_are_written(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Does Jaco have any health concerns?\n", "utf-8")
    ended = qtm("transform", "-t", "none", "--file", "q.txt", "--out", "out.jsonl")
    assert ended.code == 0, ended.err
    (record,) = read_records(tmp_path / "out.jsonl")
    assert (record["preprocessed"], record["calls"]) == ("jaco health concerns", 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--file", "q.txt"), "--file needs --out"),
        (("--out", "o.jsonl"), "--out needs --file"),
        (("Why?", "--file", "q.txt", "--out", "o.jsonl"), "must stand in the file"),
        (
            ("--file", "q.txt", "--out", "o.jsonl", "-H", "Who?"),
            'their "history" must stand in the file',
        ),
        (
            ("--file", "no.txt", "--out", "o.jsonl"),
            "no.txt cannot be read: No such file or directory",
        ),
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


def test_a_terminal_sees_how_far_it_is(service: RewritingService, tmp_path: Path) -> None:
    service.seconds = 0.1
    write_questions(tmp_path / "queries.jsonl", make_questions(40))
    options = build_command("--concurrency", "2")[3:]
    with Terminal(*options, folder=tmp_path, environ=build_environment(service.url)) as terminal:
        terminal.wait_for("transforming", "/40", seconds=150)
        terminal.wait_for("40 lines: 40 asked", seconds=150)
        assert terminal.ended(150) == 0
