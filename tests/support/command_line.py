"""The command line as its users run it: a process of its own, with real streams."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.stores import SQLiteStore
from tests.support.answering_service import AnsweringService
from tests.support.conversing import INDEX, PASSAGES, PATIENCE


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def qtm(tmp_path: Path) -> Callable[..., Ended]:
    """Run ``qtm`` without a key, in a folder that is empty or the one given."""

    def run(
        *arguments: str, text: bytes = b"", folder: Path | None = None, **environ: str
    ) -> Ended:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPENAI_", "QTM_"))
        }
        # What shows the settings shows nobody's but those a test gives.
        kept |= {} if "config" in arguments else PATIENCE
        ended = subprocess.run(
            [sys.executable, "-c", "from qtmiddleware.kit.cli import main; main()", *arguments],
            input=text,
            capture_output=True,
            cwd=folder or tmp_path,
            env={**kept, "PYTHONIOENCODING": "utf-8", **environ},
            timeout=200,
            check=False,
        )
        return Ended(
            ended.returncode,
            ended.stdout.decode("utf-8", "replace"),
            ended.stderr.decode("utf-8", "replace"),
        )

    return run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an index of the passages, with real vectors."""
    path = tmp_path_factory.mktemp("index") / INDEX.name
    embedder = find_embedder("all-MiniLM-L6-v2")
    with SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension) as store:
        store.upsert(PASSAGES, embedder.embed([passage.text for passage in PASSAGES]))
    return path.parent


@pytest.fixture
def folder(tmp_path: Path, built: Path) -> Path:
    """The folder in which ``qtm`` runs, with an index where the config's default has it."""
    shutil.copytree(built, tmp_path / INDEX.parent)
    return tmp_path


@pytest.fixture
def service(httpserver: HTTPServer) -> Iterator[AnsweringService]:
    """A language model's service."""
    answering = AnsweringService(httpserver)
    yield answering
    answering.released.set()
