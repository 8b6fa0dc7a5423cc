"""A run over a file that is killed again and again: nothing is lost, and little is asked twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support.bulk_world import (
    RewritingService,
    make_questions,
    read_records,
    rewrite,
    start,
    wait_for_requests,
    write_questions,
)

pytestmark = pytest.mark.thorough

KILLS = 20
CONCURRENCY = 4
QUESTIONS = 300


def test_a_run_that_is_killed_twenty_times_loses_nothing(
    service: RewritingService, tmp_path: Path
) -> None:
    service.seconds = 0.01
    questions = make_questions(QUESTIONS)
    write_questions(tmp_path / "queries.jsonl", questions)
    chance, kills = random.Random(20_261_123), 0
    while kills < KILLS:
        running = start(tmp_path, service.url, "--concurrency", str(CONCURRENCY))
        assert wait_for_requests(service, len(service.bodies) + chance.randint(1, 12), running)
        running.kill()
        running.communicate(timeout=200)
        kills += 1
    running = start(tmp_path, service.url, "--concurrency", str(CONCURRENCY))
    _, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    records = read_records(tmp_path / "out.jsonl")
    assert len(records) == QUESTIONS
    assert {it["query"]: it["rewrite"] for it in records} == {it: rewrite(it) for it in questions}
    again = {
        question: count - 1 for question, count in Counter(service.questions).items() if count > 1
    }
    # Each kill met at most so many questions that were under way, or answered and not written yet.
    assert sum(again.values()) <= KILLS * 2 * CONCURRENCY
