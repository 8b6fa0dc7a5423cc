"""A log that cannot be written changes nothing but the account."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import qtmiddleware as qtm
from tests.support.fault_world import QUERY, search
from tests.support.log_lines import log_lines


def test_a_log_that_cannot_be_written_is_warned_of_once_and_written_when_it_can_be(
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
    ]
    assert len(log_lines(folder / "queries.jsonl")) == 5


def test_no_passage_reaches_the_log_even_where_it_stands_in_for_an_id(
    tmp_path: Path,
) -> None:
    path = tmp_path / "queries.jsonl"
    rows = [
        {"document_id": "d1", "text": "Jaco has a secret illness", "score": 0.9},
        {"text": "Jaco has another secret", "score": 0.5},
    ]
    config = {"log": {"path": str(path), "texts": "none"}}
    qtm.QueryMiddleware(config).wrap(lambda query, top_k: rows)(QUERY, 3)
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) == 1
    assert "secret" not in json.dumps(log_lines(path))
    assert QUERY not in text
