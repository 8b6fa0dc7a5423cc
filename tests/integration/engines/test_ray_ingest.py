"""An index that a Ray cluster embeds for: the same as without one, and none the worse for kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.engines import Engine
from qtmiddleware.kit.engines.ray import RayEngine
from qtmiddleware.kit.index.ingestion import IngestReport, Progress, ingest
from tests.support.command_line import Ended, qtm
from tests.support.ray_work import WORKERS, find_marked
from tests.support.shared_data import SHARED, needs_shared_data

__all__ = ["qtm"]

ROOT = Path(__file__).parents[3]
ROWS = 120
pytestmark = [
    pytest.mark.thorough,
    needs_shared_data,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]
Passages = dict[str, tuple[str, str, bytes]]


def run(data: Path, index: Path, **options: Any) -> IngestReport:
    return ingest(data, config={"indexPath": str(index)}, **options)


def read_index(index: Path) -> Passages:
    """Every passage by its id."""
    with closing(sqlite3.connect(index)) as connection:
        rows = connection.execute("SELECT id, text, metadata, vector FROM passages")
        return {id_: (text, metadata, vector) for id_, text, metadata, vector in rows}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents, and two corpora in JSON Lines."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copy(SHARED / "docs" / "quantum.txt", folder)
    shutil.copy(SHARED / "docs" / "val.json", folder)
    for name in ("covid_faq", "nq_small"):
        with (SHARED / "data" / name / "corpus.jsonl").open() as file:
            (folder / f"{name}.jsonl").write_text("".join(islice(file, ROWS)))
    return folder


@pytest.fixture(scope="module")
def local(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Passages:
    """What an ingest in this process alone stores."""
    index = tmp_path_factory.mktemp("local") / "index"
    report = run(data, index)
    assert report.documents > 2
    return read_index(index)


def test_ray_stores_the_same_to_the_bit_also_where_a_worker_is_killed(
    data: Path, local: Passages, engine: RayEngine, mark: str, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one(step: Progress) -> None:
        if step.stage == "embedding" and step.done and not killed:
            killed.extend(pid for pid, name in islice(find_workers(mark), 1))
            os.kill(killed[0], signal.SIGKILL)

    report = run(data, tmp_path / "index", engine=engine, progress=kill_one)
    assert killed
    assert read_index(tmp_path / "index") == local
    assert report.embedded <= report.written == report.chunks == len(local)


def find_workers(mark: str) -> Any:
    return ((pid, name) for pid, name in find_marked(mark).items() if "_Worker" in name)


def test_a_driver_that_is_killed_is_taken_up_by_the_same_command(
    data: Path, local: Passages, address: str, tmp_path: Path, qtm: Callable[..., Ended]
) -> None:
    index = tmp_path / "index"
    command = [sys.executable, "-m", "tests.support.ray_ingest_driver", str(data), str(index)]
    environment = {**os.environ, "RAY_ADDRESS": address}
    died = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, timeout=200, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    options = ("--index", str(index), "--json")
    ended = qtm(
        "ingest",
        str(data),
        *options,
        "--engine",
        "ray",
        "--workers",
        str(WORKERS),
        RAY_ADDRESS=address,
    )
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    # A batch was in the ledger, and is not embedded again; the last one is smaller, and may be done
    # first.
    assert report["embedded"] < len(local)
    assert report["written"] == len(local)
    assert read_index(index) == local


class _Unasked:
    """An engine that is asked for nothing."""

    def map(self, build: Callable[[], Callable[[Any], Any]], batches: Any) -> Any:
        raise AssertionError("a function of the user's was to be sent")

    def close(self) -> None:
        """Nothing is open."""


def test_what_cannot_be_sent_embeds_in_this_process(data: Path, tmp_path: Path) -> None:
    engine: Engine = _Unasked()
    processes = set()

    def embed(texts: list[str]) -> list[list[float]]:
        processes.add(os.getpid())
        return [[1.0, float(len(text))] for text in texts]

    run(data / "val.json", tmp_path / "index", engine=engine, embedder=embed)
    assert processes == {os.getpid()}
