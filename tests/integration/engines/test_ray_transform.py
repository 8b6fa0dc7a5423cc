"""Questions that the workers of a Ray cluster transform, each with a model of its own, asked at a local service."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.bulk import transform_file
from qtmiddleware.kit.bulk.run import ROUNDS
from qtmiddleware.kit.engines.ray import AHEAD, RayEngine
from tests.support.bulk_world import (
    RewritingService,
    build_command,
    build_environment,
    make_questions,
    read_records,
    rewrite,
    write_questions,
)
from tests.support.ray_work import SECONDS, WORKERS

CONCURRENCY = 4
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


@pytest.fixture
def service(httpserver: HTTPServer) -> Iterator[RewritingService]:
    """A language model's service."""
    rewriting = RewritingService(httpserver)
    yield rewriting
    rewriting.released.set()


def build_config(url: str) -> Config:
    limits = {"llmTimeoutMs": 120_000, "deadlineMs": 120_000}
    return Config.load({"transformationType": "rewrite", "llm": {"baseUrl": url}, "limits": limits})


def by_line(path: Path) -> list[dict[str, Any]]:
    return sorted(read_records(path), key=lambda record: record["line"])


def test_the_records_are_those_of_a_run_without_ray(
    service: RewritingService, engine: RayEngine, tmp_path: Path
) -> None:
    questions = make_questions(70)
    service.refused = {questions[5]}
    file = write_questions(tmp_path / "queries.jsonl", questions)
    with file.open("a") as more:
        more.write("no JSON\n")
    config = build_config(service.url)
    local = transform_file(file, tmp_path / "local.jsonl", config=config, concurrency=CONCURRENCY)
    report = transform_file(
        file, tmp_path / "ray.jsonl", config=config, concurrency=CONCURRENCY, engine=engine
    )
    assert by_line(tmp_path / "ray.jsonl") == by_line(tmp_path / "local.jsonl")
    assert {**report.to_dict(), "seconds": 0} == {**local.to_dict(), "seconds": 0}
    assert (report.asked, report.failed.total(), report.broken_lines) == (69, 1, 1)


def test_a_model_that_cannot_be_asked_ends_the_run_and_what_was_done_is_kept(
    service: RewritingService, engine: RayEngine, tmp_path: Path
) -> None:
    file = write_questions(tmp_path / "queries.jsonl", make_questions(60))
    config = build_config(service.url).overridden({"budget": {"maxTokens": 4_000}})
    out = tmp_path / "out.jsonl"
    with pytest.raises(ModelError) as caught:
        transform_file(file, out, config=config, concurrency=CONCURRENCY, engine=engine)
    assert caught.value.reason == "over_budget"
    assert 0 < len(read_records(out)) < 60
    with pytest.raises(ConfigError, match="cannot be passed with an engine"):
        transform_file(file, out, config=config, client=lambda _: "", engine=engine)


def test_a_driver_that_is_killed_goes_on_and_doubles_no_record(
    service: RewritingService, address: str, tmp_path: Path
) -> None:
    service.seconds = 0.02
    questions = make_questions(200)
    write_questions(tmp_path / "queries.jsonl", questions)
    out = tmp_path / "out.jsonl"
    running = start(tmp_path, service.url, address)
    wait_for_output(out, running)
    running.kill()
    running.communicate(timeout=200)
    before = len(read_records(out))
    assert 0 < before < len(questions)
    printed, err = start(tmp_path, service.url, address).communicate(timeout=200)
    report = json.loads(printed)
    assert (report["before"], report["asked"]) == (before, len(questions) - before), err
    records = by_line(out)
    assert [it["line"] for it in records] == list(range(1, len(questions) + 1))
    assert all(it["rewrite"] == rewrite(questions[it["line"] - 1]) for it in records)
    again = Counter(service.questions).total() - len(questions)
    assert again <= AHEAD * WORKERS * ROUNDS * CONCURRENCY


def start(folder: Path, url: str, address: str) -> subprocess.Popen[bytes]:
    options = (
        "--concurrency",
        str(CONCURRENCY),
        "--engine",
        "ray",
        "--workers",
        str(WORKERS),
        "--json",
    )
    return subprocess.Popen(
        build_command(*options),
        cwd=folder,
        env={**build_environment(url), "RAY_ADDRESS": address},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_output(out: Path, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + SECONDS
    while not (out.exists() and out.stat().st_size):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
