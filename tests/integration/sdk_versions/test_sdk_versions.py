"""Today's Pinecone SDK and two of earlier generations, each in a process of its own, over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pinecone_server.state import HOSTED, HOSTED_DIMENSION
from tests.support.pinecone_world import pinecone_world

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[3]
PROBE = Path(__file__).with_name("probe.py")
OLD, BEFORE, HERE = "7.3.0", "9.1.0", "10"
"""langchain-pinecone pins the oldest. It searches as all do; the own store needs the two others."""
TEXTS = {"a": "the first one", "b": "the second one"}


@pytest.mark.parametrize("wanted", [OLD, BEFORE, HERE])
def test_searches_store_and_reranker_work_with_the_sdk(wanted: str) -> None:
    with pinecone_world() as world:
        world.api_key = world.app.api_key = "k"
        world.add_index("dense", dimension=3)
        world.add_index("kept", dimension=3)
        world.add_index("texts", dimension=HOSTED_DIMENSION, model=HOSTED)
        records = [{"_id": id_, "text": text} for id_, text in TEXTS.items()]
        world.index("texts").upsert_records(namespace="docs", records=records)
        environment = {**os.environ, **world.environment, "PYTHONPATH": str(ROOT)}
        if wanted != HERE:
            folder = ROOT / ".tmp" / "sdk" / wanted
            assert folder.is_dir(), f"pinecone {wanted} is missing; run: scripts/test --thorough"
            environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
        done = subprocess.run(
            [sys.executable, str(PROBE), world.url, *(["keep"] if wanted != OLD else [])],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == wanted or found["version"].startswith(f"{wanted}.")
    for call in ("query", "search"):
        assert found[call] == {
            "ids": ["b", "a"],
            "texts": [TEXTS["b"], TEXTS["a"]],
            "type": True,
            "usage": True,
            "degradations": [],
        }
    if wanted != OLD:
        assert (found["filter"], found["rerank"], found["count"]) == (["b"], [1.0, 0.0], 3)
