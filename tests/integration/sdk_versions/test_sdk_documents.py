"""The document search of the oldest Pinecone SDK that has one, and of the one here, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.document_world import add_documents
from tests.support.pinecone_world import pinecone_world

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[3]
PROBE = Path(__file__).with_name("probe_documents.py")
OLDEST, HERE = "10.0.0", "10"


@pytest.mark.parametrize("wanted", [OLDEST, HERE])
def test_every_clause_is_searched_and_the_response_is_the_sdks_own(wanted: str) -> None:
    folder = ROOT / ".tmp" / "sdk" / wanted
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if wanted != HERE:
        assert folder.is_dir(), (
            f"pinecone {wanted} is missing; run: PYTHON={sys.executable} scripts/sdk-versions"
        )
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    with pinecone_world() as world:
        add_documents(world)
        command = [sys.executable, str(PROBE), world.host("docs"), world.api_key]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["version"] == wanted or report["version"].startswith(f"{wanted}.")
    assert report["found"] == report["awaited"]
    for name, found in report["found"].items():
        searches = 2 if name == "dense_vector" else 1
        assert (found["type"], found["status"]) == ("SearchDocumentsResponse", "full")
        assert (found["searches"], found["reads"], len(found["ids"])) == (searches, searches, 2)
        assert found["fields"] == ["_id", "_score", "title"]
