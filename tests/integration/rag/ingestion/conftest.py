"""A world to ingest in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ingest_world import SENTENCES, World


@pytest.fixture
def empty(tmp_path: Path) -> World:
    """No documents yet."""
    return World(tmp_path)


@pytest.fixture
def world(empty: World) -> World:
    """Three documents, none of them ingested."""
    empty.write("alpha.txt", SENTENCES["alpha"])
    empty.write("sub/beta.md", f"# All about beta\n\n{SENTENCES['beta']}")
    empty.write("gamma.txt", SENTENCES["gamma"])
    return empty
