"""A log that cannot be written changes nothing but the account."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import qtmiddleware as qtm
from qtmiddleware.runtime.logs import LogSampler, get_logger
from qtmiddleware.wrapping.query_log import QueryLog
from tests.support.clock import Clock
from tests.support.fault_world import QUERY, WIDE, Caller, search, transforming
from tests.support.log_lines import log_lines
from tests.support.model_server import ModelServer


def test_a_log_that_cannot_be_written_leaves_the_result_as_it_is(
    caller: Caller, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    day = caller.ask({"log": {"path": str(tmp_path / "file" / "queries.jsonl")}})
    rules = caller.rules_alone()
    assert day.response == rules.response
    assert day.retrieval.matches == rules.retrieval.matches
    assert day.retrieval.status == "degraded"
    assert day.reasons == [("log", "failed")]
    assert day.calls == [(QUERY, WIDE)]
    assert str(tmp_path) not in caplog.text


def test_a_log_that_is_a_folder_leaves_the_result_as_it_is(caller: Caller, tmp_path: Path) -> None:
    day = caller.ask({"log": {"path": str(tmp_path)}})
    assert day.reasons == [("log", "failed")]
    assert day.response == caller.rules_alone().response


def test_the_folder_of_a_log_is_never_made(caller: Caller, tmp_path: Path) -> None:
    day = caller.ask({"log": {"path": str(tmp_path / "missing" / "queries.jsonl")}})
    assert day.response == caller.rules_alone().response
    (trouble,) = day.retrieval.degradations
    assert (trouble.stage, trouble.reason) == ("log", "failed")
    assert trouble.detail == "the folder of log.path does not exist; create it"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("now", [253_402_300_900.0, 1e12, -1e15, float("inf")])
def test_a_clock_beyond_all_years_breaks_no_log(
    now: float, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queries.jsonl"
    monkeypatch.setattr("qtmiddleware.types.time", lambda: now)
    day = caller.ask({"log": {"path": str(path)}})
    assert day.retrieval.status == "full"
    (line,) = log_lines(path)
    assert (line["queries"], line["timestamp"]) == ([QUERY], None)


def test_a_log_is_warned_of_when_it_cannot_be_written_and_when_it_can_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    wrapped = qtm.QueryMiddleware({"log": {"path": str(folder / "queries.jsonl")}}).wrap(search)
    for _ in range(5):
        assert wrapped.retrieve(QUERY).degradations[0].stage == "log"
    folder.mkdir()
    for _ in range(5):
        assert wrapped.retrieve(QUERY).status == "full"
    assert caplog.messages == [
        "query log failed: the folder of log.path does not exist; create it",
        "query log restored: it can be written again",
    ]
    assert len(log_lines(folder / "queries.jsonl")) == 5


def test_a_log_that_comes_and_goes_is_warned_of_once_a_minute_and_no_failure_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, folder = Clock(), tmp_path / "logs"
    sampler = LogSampler(clock=clock)
    log = QueryLog(folder / "queries.jsonl", sampler=sampler)
    found = qtm.QueryMiddleware().wrap(search).retrieve(QUERY)
    for _ in range(100):
        clock.now += 1
        folder.mkdir()
        assert log.append_record(found) is None
        shutil.rmtree(folder)
        assert log.append_record(found) is not None
    sampler.flush(get_logger("qtmiddleware"))
    failed = [it.qtm for it in caplog.records if it.qtm["event"] == "query_log_failed"]  # type: ignore[attr-defined]
    assert len(caplog.records) <= 8
    assert sum(sum(it["counts"].values()) for it in failed) == 100


def test_every_query_is_logged_for_its_owner_alone(
    caller: Caller, service: ModelServer, tmp_path: Path
) -> None:
    path = tmp_path / "queries.jsonl"
    service.reply = {"rewrite": "Which illness does Jaco have?"}
    day = caller.ask(transforming("rewrite", log={"path": str(path)}))
    (line,) = log_lines(path)
    assert line["query_id"] == day.retrieval.trace.query_id
    assert line["queries"] == [QUERY]
    assert [it["kind"] for it in line["variants"]] == ["original", "rewrite"]
    assert [it["id"] for it in line["retrieval_steps"]["final"]] == [
        match.id for match in day.retrieval.matches
    ]
    assert path.stat().st_mode & 0o077 == 0 or os.name == "nt"


def test_no_passage_reaches_the_log_even_where_it_stands_in_for_an_id(
    caller: Caller, tmp_path: Path
) -> None:
    path = tmp_path / "queries.jsonl"
    rows = [
        {"document_id": "d1", "text": "Jaco has a secret illness", "score": 0.9},
        {"text": "Jaco has another secret", "score": 0.5},
    ]
    caller.ask({"log": {"path": str(path), "texts": "none"}}, respond=lambda query, top_k: rows)
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) == 1
    assert "secret" not in json.dumps(log_lines(path))
    assert QUERY not in text


def test_the_log_is_set_for_one_call(caller: Caller, tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    day = caller.ask({}, config={"log": {"path": str(path)}})
    assert [line["query_id"] for line in log_lines(path)] == [day.retrieval.trace.query_id]
