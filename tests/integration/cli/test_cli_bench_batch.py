"""``qtm bench --batch``: what came by batch is measured without asking the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.support.batch_service import BatchServer
from tests.support.bench_world import bridges_data, reply, write_data
from tests.support.command_line import Ended

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
BENCH = ("bench", "--data", "set", "--systems", "rules,combined,hyde", "--no-deep")


def test_a_bench_is_asked_by_batch_and_then_measured_without_a_call(
    qtm: Run, httpserver: HTTPServer, tmp_path: Path
) -> None:
    write_data(tmp_path / "set", bridges_data())
    service = BatchServer(httpserver, reply)
    address = {"QTM_LLM_BASE_URL": service.url}
    ended = qtm(*BENCH, "--batch", "submit", **address)
    assert (ended.code, "under way: 12 requests" in ended.out) == (0, True), ended.err
    assert qtm(*BENCH, "--batch", "collect", **address).code == 1
    service.finish()
    ended = qtm(*BENCH, "--batch", "collect", "--record", "r.jsonl", "--model-ms", "400", **address)
    assert ended.code == 0, ended.err
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 12
    ended = qtm(*BENCH, "--json", **address)
    assert ended.code == 0, ended.err
    assert service.live.total() == 0
    assert [system["name"] for system in json.loads(ended.out)["systems"]] == [
        "raw",
        "rules",
        "combined",
        "hyde",
    ]
    ended = qtm(*BENCH, "--batch", "submit", "--report", "out", **address)
    assert (ended.code, "--batch only collects model replies" in ended.err) == (2, True)
