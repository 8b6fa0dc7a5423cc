"""The store on Pinecone with today's SDK and the one of the generation before, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.sdk_versions.test_sdk_versions import BEFORE, HERE, run_with
from tests.support.pinecone_world import pinecone_world

pytestmark = pytest.mark.thorough

PROBE = Path(__file__).with_name("probe_stores.py")
WHOLE = {"upsert": None, "search": ["a", "b"], "filter": [{"n": 1}], "delete": None, "count": 1}


@pytest.mark.parametrize("wanted", [BEFORE, HERE])
def test_the_store_works(wanted: str) -> None:
    with pinecone_world() as world:
        world.add_index("dense", dimension=3)
        found = json.loads(run_with(wanted, str(PROBE), world.url, **world.environment))
    assert found["by host"] == found["by name"] == WHOLE
    assert found["rerank"] == [1.0, 0.0]
