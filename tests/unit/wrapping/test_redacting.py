"""What a `redact` hook keeps out is written nowhere."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm

QUERY = "Where does Erika Mustermann live?"
ROWS = [{"id": "a", "score": 0.9, "metadata": {"text": "the town hall knows"}}]


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return ROWS


def rewriting(_: Any) -> str:
    return json.dumps({"rewrite": "Where is the home of Erika Mustermann?"})


def without_names(text: str) -> str:
    return text.replace("Erika Mustermann", "[name]")


def middleware(tmp_path: Path, redact: Any) -> Any:
    config = {"transformationType": "rewrite", "log": {"path": str(tmp_path / "queries.jsonl")}}
    return qtm.QueryMiddleware(config, client=rewriting, redact=redact).wrap(search)


def written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> str:
    return (tmp_path / "queries.jsonl").read_text() + caplog.text


def test_log_and_debug_records_hold_what_redact_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "qtmiddleware"):
        retrieval = middleware(tmp_path, without_names).retrieve(QUERY)
    said = written(tmp_path, caplog)
    # Also in small letters, which this `redact` does not know.
    assert "mustermann" not in said.casefold()
    assert said.count("Where does [name] live?") == 5
    assert 'Query preprocessing: "Where does [name] live?" -> "live"' in said
    assert said.count("Where is the home of [name]?") == 2
    # The caller's own copy is whole.
    assert (retrieval.original_query, retrieval.status) == (QUERY, "full")
