"""A submit and a collect that are killed at any moment are taken up: nothing is lost, and nothing is sent twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.support.batch_service import BatchServer
from tests.support.bench_world import reply

pytestmark = pytest.mark.thorough

KILLS = 20
QUESTIONS = [f"When was bridge number {number} opened to traffic?" for number in range(60)]


def test_killed_twenty_times_every_question_is_answered_once_and_sent_once(
    httpserver: HTTPServer, tmp_path: Path
) -> None:
    service = BatchServer(httpserver, reply)
    source, out = tmp_path / "q.txt", tmp_path / "o.jsonl"
    # The last one is asked twice.
    source.write_text("".join(f"{question}\n" for question in (*QUESTIONS, QUESTIONS[-1])))
    chance = random.Random(5)
    killed: Counter[str] = Counter()

    def run(command: str, *, kill: bool) -> bool:
        """Whether *command* came to its end; where it is to be killed, that is around a call it makes."""
        worker = [
            sys.executable,
            "-m",
            "tests.support.batch_worker",
            str(source),
            str(out),
            service.url,
            command,
        ]
        left = chance.randint(1, 3)
        with subprocess.Popen(worker, stderr=subprocess.PIPE) as process:

            def count() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    process.kill()
                    process.wait()

            at = chance.choice(("before", "after"))
            if kill:
                setattr(service, at, count)
            try:
                _, said = process.communicate(timeout=200)
            finally:
                service.before = service.after = lambda: None
            assert process.returncode in ((0, -9) if kill else (0,)), said.decode()
        killed[command] += process.returncode == -9
        return process.returncode == 0

    for command in ("submit", "collect"):
        before = killed.total()
        while killed.total() < before + KILLS // 2 and not run(command, kill=True):
            pass
        if command == "submit":
            assert run(command, kill=False)
            service.finish()
    assert killed == {"submit": KILLS // 2, "collect": KILLS // 2}
    for _ in range(2):
        assert run("submit", kill=False)
        service.finish()
        assert run("collect", kill=False)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(record["line"] for record in records) == list(range(1, len(QUESTIONS) + 2))
    assert {record["query"] for record in records} == set(QUESTIONS)
    assert not any("error" in record for record in records)
    assert len(service.sent) == len(QUESTIONS)
    assert set(service.sent.values()) == {1}
    print(f"killed {dict(killed)}: {len(records)} lines, {service.sent.total()} requests sent")
