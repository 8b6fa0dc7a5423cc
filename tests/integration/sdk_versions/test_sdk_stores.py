"""The stores on Pinecone with every Pinecone SDK from 5 to 10, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pinecone_world import pinecone_world

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[3]
PROBE = Path(__file__).with_name("probe_stores.py")
HERE = "10"
WHOLE = {"upsert": None, "search": ["a", "b"], "filter": [{"n": 1}], "delete": None, "count": 1}


def probed(wanted: str) -> dict[str, Any]:
    """What became of the passages with that version of the client."""
    with pinecone_world() as world:
        world.add_index("dense", dimension=3)
        world.add_index("words", kind="sparse")
        world.add_index("texts", dimension=16, model="test-embed")
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONPATH"
        } | world.environment
        command = [sys.executable]
        if wanted != HERE:
            folder = ROOT / ".tmp" / "sdk" / wanted
            assert folder.is_dir(), (
                f"pinecone {wanted} is missing; run: PYTHON={sys.executable} scripts/sdk-versions"
            )
            environment["PYTHONPATH"] = str(folder)
            command.append("-S")  # no other package is in reach
        done = subprocess.run(
            [*command, str(PROBE), world.url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("wanted", ["5.4.2", "6.0.2", "7.3.0", "8.1.2", "9.1.0", HERE])
def test_every_store_works_or_says_which_client_it_needs(wanted: str) -> None:
    found = probed(wanted)
    assert found["by host"] == found["by name"] == WHOLE
    assert found["words"] == {**WHOLE, "words": ["a"]}
    assert found["rerank"] == [1.0, 0.0]
    if wanted.startswith("5."):
        # Indexes that embed came with version 6.
        for use in ("upsert", "search", "filter"):
            assert 'run: pip install "pinecone>=6"' in found["integrated"][use]
    else:
        assert found["integrated"] == WHOLE
