"""Work on a Ray cluster of this machine."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.config import Config
from qtmiddleware.kit.bulk import transform_file
from qtmiddleware.kit.index.ingestion import ingest
from qtmiddleware.kit.ray_data import connect_to_ray
from tests.support.bulk_world import (
    RewritingService,
    make_questions,
    read_records,
    rewrite,
    write_questions,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all: starting it takes longer than the tests."""
    with pytest.MonkeyPatch.context() as environment, connect_to_ray():
        environment.delenv("RAY_ADDRESS", raising=False)
        yield


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


def test_ray_builds_the_index_of_this_process(tmp_path: Path) -> None:
    lines = [
        json.dumps({"_id": str(at), "text": f"Bee {at} of the hive makes honey. " * 4})
        for at in range(80)
    ]
    data = tmp_path / "bees.jsonl"
    data.write_text("\n".join(lines), encoding="utf-8")

    ingest(data, config={"indexPath": str(tmp_path / "here.sqlite")})
    report = ingest(data, config={"indexPath": str(tmp_path / "ray.sqlite")}, on_ray=True)
    assert report.embedded == report.written == len(lines)
    assert read_index(tmp_path / "ray.sqlite") == read_index(tmp_path / "here.sqlite")


def test_every_question_of_a_file_has_one_record(service: RewritingService, tmp_path: Path) -> None:
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
    report = transform_file(file, out, config=config, concurrency=2, on_ray=True)
    assert (report.made, report.failed) == (len(questions), {})
    records = read_records(out)
    assert len(records) == len(questions)
    assert {it["query"]: it["rewrite"] for it in records} == {it: rewrite(it) for it in questions}
    again = transform_file(file, out, config=config, on_ray=True)
    assert (again.before, again.made) == (len(questions), 0)
