"""Work on a Ray cluster of this machine, with a worker killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.config import Config
from qtmiddleware.kit.bulk import BulkReport, transform_file
from qtmiddleware.kit.index.ingestion import Progress, ingest
from qtmiddleware.kit.ray_data import connect_to_ray
from tests.support.bulk_world import (
    RewritingService,
    make_questions,
    read_records,
    rewrite,
    write_questions,
)

MARK = "RAY_TEST_MARK"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


@pytest.fixture(scope="module")
def kill_worker() -> Iterator[Callable[[], int]]:
    """A function that kills a process of this module's cluster that is at work."""
    mark = f"{MARK}={uuid4().hex}"

    def kill() -> int:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name = (folder / "cmdline").read_bytes()
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            # Ray names a worker after its task while the task runs.
            if name.startswith(b"ray::MapBatches") and mark.encode() in environment:
                os.kill(int(folder.name), signal.SIGKILL)
                return int(folder.name)
        return 0

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(*mark.split("="))
        environment.delenv("RAY_ADDRESS", raising=False)
        # Starting a cluster takes longer than the tests.
        with connect_to_ray():
            yield kill


@pytest.fixture
def service(httpserver: HTTPServer) -> Iterator[RewritingService]:
    """A language model's service."""
    rewriting = RewritingService(httpserver)
    yield rewriting
    rewriting.released.set()


def read_index(index: Path) -> list[Any]:
    with closing(sqlite3.connect(index)) as connection:
        return connection.execute(
            "SELECT id, text, metadata, vector FROM passages ORDER BY id"
        ).fetchall()


def test_ray_builds_the_index_of_this_process_although_a_worker_is_killed(
    kill_worker: Callable[[], int], tmp_path: Path
) -> None:
    lines = [
        json.dumps({"_id": str(at), "text": f"Bee {at} of the hive makes honey. " * 4})
        for at in range(80)
    ]
    data = tmp_path / "bees.jsonl"
    data.write_text("\n".join(lines), encoding="utf-8")
    killed: list[int] = []

    def kill_one(step: Progress) -> None:
        if step.stage == "embedding" and step.done and not any(killed):
            killed.append(kill_worker())

    ingest(data, config={"indexPath": str(tmp_path / "here.sqlite")})
    report = ingest(
        data, config={"indexPath": str(tmp_path / "ray.sqlite")}, on_ray=True, progress=kill_one
    )
    assert any(killed)
    assert report.embedded == report.written == len(lines)
    assert read_index(tmp_path / "ray.sqlite") == read_index(tmp_path / "here.sqlite")


def test_every_question_of_a_file_has_one_record_although_a_worker_is_killed(
    kill_worker: Callable[[], int], service: RewritingService, tmp_path: Path
) -> None:
    service.seconds = 0.1
    questions = make_questions(80)
    file = write_questions(tmp_path / "queries.jsonl", questions)
    config = Config.load(
        {
            "transformationType": "rewrite",
            "llm": {"baseUrl": service.url},
            "limits": {"llmTimeoutMs": 120_000, "deadlineMs": 120_000},
        }
    )
    out = tmp_path / "out.jsonl"
    killed: list[int] = []

    def kill_one(report: BulkReport) -> None:
        if report.made and not any(killed):
            killed.append(kill_worker())

    report = transform_file(file, out, config=config, concurrency=2, on_ray=True, show=kill_one)
    assert any(killed)
    assert (report.made, report.failed) == (len(questions), {})
    records = read_records(out)
    assert len(records) == len(questions)
    assert {it["query"]: it["rewrite"] for it in records} == {it: rewrite(it) for it in questions}
    again = transform_file(file, out, config=config, on_ray=True)
    assert (again.before, again.made) == (len(questions), 0)
