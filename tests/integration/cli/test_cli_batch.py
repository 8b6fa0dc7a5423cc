"""``qtm transform --batch`` as its users run it, at a service over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.support.batch_service import BatchServer
from tests.support.bench_world import reply
from tests.support.command_line import Ended

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
QUESTIONS = [f"When was bridge number {number} opened to traffic?" for number in range(8)]
FILES = ("transform", "--file", "q.jsonl", "--out", "o.jsonl")


@pytest.fixture
def service(httpserver: HTTPServer, tmp_path: Path) -> BatchServer:
    lines = [
        json.dumps({"id": f"q{at}", "query": question}) for at, question in enumerate(QUESTIONS)
    ]
    (tmp_path / "q.jsonl").write_text("".join(f"{line}\n" for line in (*lines, "broken")))
    return BatchServer(httpserver, reply)


def test_questions_are_submitted_looked_after_and_collected(
    qtm: Run, service: BatchServer, tmp_path: Path
) -> None:
    address = {"QTM_LLM_BASE_URL": service.url}
    ended = qtm(*FILES, "--batch", "submit", **address)
    assert ended.code == 1  # for the line that could not be read
    assert "batch_1" in ended.out
    assert "under way: 8 requests" in ended.out
    ended = qtm(*FILES, "--batch", "status", **address)
    assert (ended.code, "in_progress" in ended.out) == (0, True)
    service.endings, service.batches["batch_1"].most, service.batches["batch_1"].ends = (
        [],
        6,
        "expired",
    )
    service.finish()
    ended = qtm(*FILES, "--batch", "collect", **address)
    assert ended.code == 1
    assert "2 requests not sent yet: run --batch submit again to send them" in ended.out
    assert "2 batch_expired" in ended.err
    assert not any(question in ended.out + ended.err for question in QUESTIONS)
    qtm(*FILES, "--batch", "submit", **address)
    service.finish()
    ended = qtm(*FILES, "--batch", "collect", "--json", **address)
    plain = json.loads(ended.out)
    assert (plain["open"], plain["report"]["before"], plain["report"]["asked"]) == (0, 6, 2)
    by_batch = {
        record["line"]: record
        for record in map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    }
    # What a run one by one writes, cost aside.
    qtm("transform", "--file", "q.jsonl", "--out", "live.jsonl", **address)
    live = {
        record["line"]: record
        for record in map(json.loads, (tmp_path / "live.jsonl").read_text().splitlines())
    }
    assert [{**by_batch[line], "cost_usd": 0} for line in sorted(by_batch)] == [
        {**live[line], "cost_usd": 0} for line in sorted(live)
    ]
    assert service.sent.keys() == service.live.keys()
    # All else replays the recording.
    recorded = [
        json.loads(line)["query"]
        for line in (tmp_path / "o.jsonl.recording.jsonl").read_text().splitlines()
    ]
    assert sorted(recorded) == sorted(QUESTIONS)


def test_what_has_changed_since_the_submit_is_refused_with_what_it_is(
    qtm: Run, service: BatchServer, tmp_path: Path
) -> None:
    address = {"QTM_LLM_BASE_URL": service.url}
    (tmp_path / "q.jsonl").write_text(f'{{"query": "{QUESTIONS[0]}"}}\n')
    assert qtm(*FILES, "--batch", "submit", **address).code == 0
    for step in ("collect", "submit"):
        ended = qtm(*FILES, "--batch", step, "--type", "hyde", **address)
        assert ended.code == 2
        assert "transformationType (was combined, is hyde), prompts" in ended.err
    ended = qtm(*FILES, "--batch", "collect", "--set", "transformationModel=gpt-5", **address)
    assert (ended.code, "transformationModel (was gpt-6-luna, is gpt-5)" in ended.err) == (2, True)
    (tmp_path / "q.jsonl").write_text(f'{{"query": "{QUESTIONS[1]}"}}\n')
    ended = qtm(*FILES, "--batch", "collect", **address)
    assert (ended.code, "the questions in q.jsonl" in ended.err) == (2, True)
    assert len(service.batches) == 1


def test_without_a_key_or_a_file_and_with_options_that_do_not_fit_it_is_said(
    qtm: Run, service: BatchServer
) -> None:
    ended = qtm(*FILES, "--batch", "submit")
    assert (ended.code, "the key for the language model is missing" in ended.err) == (1, True)
    for arguments, said in (
        (("transform", "--batch", "submit"), "needs --out"),
        (
            ("transform", "--file", "-", "--out", "o.jsonl", "--batch", "submit"),
            "--batch needs --file",
        ),
        (
            (*FILES, "--batch", "collect", "--batch-tokens", "2000"),
            "--batch-tokens needs --batch submit",
        ),
        ((*FILES, "--batch-tokens", "2000"), "--batch-tokens needs --batch submit"),
        ((*FILES, "--batch", "status", "--overwrite"), "--overwrite needs --batch submit"),
    ):
        ended = qtm(*arguments, QTM_LLM_BASE_URL=service.url)
        assert ended.code == 2
        assert said in ended.err
    assert not service.files
