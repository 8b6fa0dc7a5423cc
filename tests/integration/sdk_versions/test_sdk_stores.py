"""The store on Pinecone with today's SDK and the one of the generation before, each in a process of its own."""

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


@pytest.mark.parametrize("wanted", ["9.1.0", HERE])
def test_the_store_works(wanted: str) -> None:
    found = probed(wanted)
    assert found["by host"] == found["by name"] == WHOLE
    assert found["rerank"] == [1.0, 0.0]
