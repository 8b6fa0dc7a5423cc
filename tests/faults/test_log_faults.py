"""A log that cannot be written changes nothing but the account."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fault_world import QUERY, WIDE, Caller, ChatService, transforming
from log_lines import log_lines


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


def test_every_query_is_logged_for_its_owner_alone(caller: Caller, service: ChatService, tmp_path: Path) -> None:
    path = tmp_path / "new" / "queries.jsonl"
    service.answer = {"rewrite": "Which illness does Jaco have?"}
    day = caller.ask(transforming("rewrite", log={"path": str(path)}))
    (line,) = log_lines(path)
    assert line["query_id"] == day.retrieval.trace.query_id
    assert line["queries"] == [QUERY]
    assert [it["kind"] for it in line["variants"]] == ["original", "rewrite"]
    assert [it["id"] for it in line["retrieval_steps"]["final"]] == [match.id for match in day.retrieval.matches]
    assert path.stat().st_mode & 0o077 == 0 or os.name == "nt"


def test_no_passage_reaches_the_log_even_where_it_stands_in_for_an_id(caller: Caller, tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    rows = [
        {"document_id": "d1", "text": "Jaco has a secret illness", "score": 0.9},
        {"text": "Jaco has another secret", "score": 0.5},
    ]
    caller.ask({"log": {"path": str(path), "queryText": False}}, respond=lambda query, top_k: rows)
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) == 1
    assert "secret" not in json.dumps(log_lines(path))
    assert QUERY not in text


def test_the_log_is_set_for_one_call(caller: Caller, tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    day = caller.ask({}, config={"log": {"path": str(path)}})
    assert [line["query_id"] for line in log_lines(path)] == [day.retrieval.trace.query_id]
