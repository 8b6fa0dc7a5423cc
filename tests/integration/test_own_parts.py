"""A transform that a config file defines, asked for on the command line; a function that merges the lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.command_line import run_here
from tests.support.model_server import ModelServer

WORLD = """
PASSAGES = {
    "a": "The kidneys filter the blood.",
    "b": "Renal failure means that the kidneys stop working.",
    "c": "The liver lies below the ribs.",
}

def search(query, top_k=3):
    return [{"id": it, "score": 1.0 - n / 10, "text": PASSAGES[it]} for n, it in enumerate("abc"[:top_k])]
"""
CONFIG = {
    "transformationType": "plain_words",
    "transforms": {
        "plain_words": {
            "prompt": "Say it in plain words.",
            "fields": {"rewrite": 0.7, "stepBack": None},
        }
    },
}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("transform", "why do kidneys stop"), "causes of renal failure"),
        (
            ("compare", "--function", "app:search", "why do kidneys stop"),
            "causes of renal failure",
        ),
        (
            (
                *("bench", "--function", "app:search", "--data", "asked.csv"),
                *("--systems", "rules"),
            ),
            '"yours"',
        ),
    ],
    ids=["transform", "compare", "bench"],
)
def test_a_transform_of_a_named_config_file_is_asked_for_on_the_command_line(
    command: tuple[str, ...], said: str, httpserver: HTTPServer, tmp_path: Path
) -> None:
    reply = {"rewrite": "causes of renal failure", "step_back": "diseases of the kidneys"}
    model = ModelServer(httpserver, reply)
    # However busy the machine is, the model has the time to answer.
    patient = {**CONFIG, "limits": {"llmTimeoutMs": 60_000, "deadlineMs": 60_000}}
    (tmp_path / "mine.json").write_text(json.dumps(patient), encoding="utf-8")
    (tmp_path / "app.py").write_text(WORLD, encoding="utf-8")
    (tmp_path / "asked.csv").write_text("question,id\nwhy do kidneys stop,b\n")
    environ = {"OPENAI_API_KEY": "sk-unused", "QTM_LLM_BASE_URL": model.url}
    ended = run_here((*command, "-c", "mine.json", "--json"), b"", tmp_path, environ)
    assert ended.code == 0, ended.err
    assert said in json.dumps(json.loads(ended.out))
    assert model.bodies
    assert any("Say it in plain words." in json.dumps(body["messages"][0]) for body in model.bodies)


def test_a_config_file_nobody_named_adds_no_transform(tmp_path: Path) -> None:
    name = "query-transform.config.json"
    (tmp_path / name).write_text(json.dumps(CONFIG), encoding="utf-8")
    ended = run_here(("transform", "-t", "none", "why do kidneys stop"), b"", tmp_path, {})
    assert ended.code == 2
    assert f"{name} was found in this folder and must not set transforms" in ended.err


# --- fuse= ----------------------------------------------------------------------------------------

ORDERS = {"why do kidneys stop": "acb", "causes of renal failure": "bca"}
FUSED = {"transformationType": "rewrite", "keywordEvidence": {"enabled": False}}


def search_lists(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return [{"id": it, "score": 1.0 - n / 10} for n, it in enumerate(ORDERS.get(query, "abc"))]


def count_points(rankings: Any, sign: int, rrf_k: int) -> Any:
    """Each list gives its first passage as many points as it has passages."""
    points: dict[Any, int] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.keys):
            points[key] = points.get(key, 0) + len(ranking.keys) - rank
    return points.items()


def retrieve(fuse: Callable[..., Any], **more: Any) -> qtm.Retrieval:
    model = ScriptedModel({"rewrite": "causes of renal failure"})
    search = qtm.middleware(config={**FUSED, **more}, client=model, fuse=fuse)(search_lists)
    return search.retrieve("why do kidneys stop")


def test_a_function_merges_the_lists_in_place_of_the_method() -> None:
    for method in ("anchored", "concat"):
        found = retrieve(count_points, fusion={"method": method})
        # Points: a 3 + 1, b 1 + 3, c 2 + 2; of equal ones the question's own list decides.
        assert [it["id"] for it in found.response] == ["a", "c", "b"]
        assert [it.id for it in found.matches] == ["a", "c", "b"]
        assert (found.status, found.degradations) == ("full", ())


def test_the_record_of_its_failure_names_the_retrieval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "qtmiddleware")
    found = retrieve(lambda *_: 1 / 0)
    assert ("fusion", "failed") in [(it.stage, it.reason) for it in found.degradations]
    fields = [getattr(record, "qtm", {}) for record in caplog.records]
    (failure,) = [it for it in fields if it.get("event") == "fusion_failed"]
    assert failure["query_id"] == found.trace.query_id


def test_what_is_no_function_is_refused() -> None:
    fuse: Any = "rrf"
    with pytest.raises(qtm.ConfigError, match="fuse must be a function") as caught:
        qtm.QueryMiddleware(fuse=fuse)
    assert caught.value.path == "fuse"
