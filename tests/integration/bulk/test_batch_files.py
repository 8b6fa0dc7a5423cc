"""A file of questions asked by batches, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.config import Config
from qtmiddleware.kit.bulk.batch import BatchStatus
from qtmiddleware.kit.bulk.batch.transforming import open_batch_work
from qtmiddleware.kit.bulk.run import BulkReport
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from tests.support.batch_service import BatchServer
from tests.support.batch_world import QUERIES
from tests.support.bench_world import reply
from tests.support.completions import error
from tests.support.redis_world import RedisServer

pytestmark = pytest.mark.thorough


def run(step: str, folder: Path, config: Config) -> tuple[BatchStatus, BulkReport]:
    with open_batch_work(folder / "q.txt", folder / "o.jsonl", config=config) as (work, report):
        return getattr(work, step)(), report


@pytest.mark.parametrize("kind", ["combined", "all"])
def test_however_many_are_refused_the_others_are_answered(
    httpserver: HTTPServer, tmp_path: Path, kind: str
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        at = QUERIES.index(json.loads(body["messages"][-1]["content"])["query"])
        return (
            reply(body) if at >= 5 else (400, error("no", code="invalid_prompt", param="messages"))
        )

    service = BatchServer(httpserver, answer)
    config = Config.load({"transformationType": kind, "llm": {"baseUrl": service.url}}, environ={})
    (tmp_path / "q.txt").write_text("".join(f"{query}\n" for query in QUERIES))
    run("submit", tmp_path, config)
    service.finish()
    for _ in range(2):
        standing, report = run("collect", tmp_path, config)
        assert (standing.open, report.failed) == (0, {"rejected": 5})
    records = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert sorted(record["line"] for record in records) == list(range(1, 13))
    assert [record["line"] for record in records if "error" not in record] == list(range(6, 13))
    assert run("submit", tmp_path, config)[0].underway == 0


def test_what_was_collected_is_in_redis_for_every_process(
    stopped_server: RedisServer, httpserver: HTTPServer, tmp_path: Path
) -> None:
    stopped_server.start()
    service = BatchServer(httpserver, reply)
    cache = {"redisUrl": stopped_server.url, "redisTimeoutMs": 10_000}
    given = {"transformationType": "combined", "llm": {"baseUrl": service.url}, "cache": cache}
    config = Config.load(given, environ={})
    (tmp_path / "q.txt").write_text(f"{QUERIES[0]}\n")
    run("submit", tmp_path, config)
    service.finish()
    run("collect", tmp_path, config)
    with QueryMiddleware(config) as middleware:
        assert not middleware.transform(QUERIES[0]).is_empty
    assert service.live.total() == 0
