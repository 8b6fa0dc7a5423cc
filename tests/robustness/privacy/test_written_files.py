"""What is written holds texts, so it is its owner's alone; what is made to be shared is as readable as other files."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.bulk import transform_file
from qtmiddleware.kit.cli.output import check_report, write_report
from qtmiddleware.kit.evaluation import Report
from qtmiddleware.kit.evaluation.recorded import RecordingModel
from qtmiddleware.kit.evaluation.testset import write
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.testing import ScriptedModel
from tests.support.bench_world import bridges_data
from tests.support.emitted import PASSAGE, QUERY, listening


def model() -> ScriptedModel:
    return ScriptedModel(
        {"rewrite": "Which illness does the dog have?", "context": "It is about a dog."}
    )


def embedder(texts: list[str]) -> list[list[float]]:
    return [[len(text) / 100, 1.0, 0.5] for text in texts]


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return [{"id": "a", "score": 1.0, "metadata": {"text": PASSAGE}}]


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path, umask: int) -> Path:
    """An open folder, as it was there before."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    return tmp_path / "open"


def in_reach_of_others(folder: Path) -> list[str]:
    """What is below *folder* that others than the owner can read, write or look into."""
    found = []
    for path in folder.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            found.append(f"{path} {mode:o}")
            found += in_reach_of_others(path) if path.is_dir() else []
    return found


def open_store(place: Path) -> None:
    SQLiteStore(place, embedding_model="m", dimension=3).close()


def write_log(place: Path) -> None:
    with listening():
        assert qtm.QueryMiddleware({"log": str(place)}).wrap(search)(QUERY)


def ingest(place: Path) -> None:
    source = place.parent.with_name("doc.txt")
    source.write_text(PASSAGE)
    config = {"indexPath": str(place.with_suffix(""))}
    qtm.ingest(source, config=config, embedder=embedder)


def record_reply(place: Path) -> None:
    with (
        listening(),
        qtm.QueryMiddleware(
            {"transformationType": "rewrite"}, client=RecordingModel(model(), place)
        ) as it,
    ):
        assert it.wrap(search)(QUERY)


def transform(place: Path) -> None:
    source = place.parent.with_name("asked.txt")
    source.write_text(QUERY)
    config = qtm.Config.load({"transformationType": "none"}, environ={})
    transform_file(source, place, config=config)


REPORT = Report("A headline.", "", "a set", (), (), "")
WRITERS: dict[str, Callable[[Path], object]] = {
    "sqlite": open_store,
    "ledger": ingest,
    "query log": write_log,
    "recording": record_reply,
    "recording of a bench": lambda place: RecordingModel(model(), place),
    "transformed questions": transform,
    "report": lambda place: write_report(place, REPORT, {}),
    "report, before anything is asked": lambda place: check_report(place),
    "test set": lambda place: write(bridges_data(), place),
}


NEED_A_FOLDER = ("query log", "transformed questions")


@pytest.mark.parametrize("writer", [name for name in WRITERS if "report" not in name])
def test_what_is_written_is_its_owners_alone(folder: Path, writer: str) -> None:
    place = folder / "made" / "here.ingest"
    if writer in NEED_A_FOLDER:
        place.parent.mkdir(mode=0o700)
    # Twice: what is there already stays so.
    for _ in range(2):
        with suppress(ConfigError):
            WRITERS[writer](place)
        assert place.exists()
        assert [it for it in in_reach_of_others(folder) if ".txt" not in it] == []


@pytest.mark.parametrize("leads_to", ["nothing", "an empty file", "a file"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_planted_link_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, leads_to: str
) -> None:
    (tmp_path / "qtmiddleware").mkdir()
    place, victim = tmp_path / "qtmiddleware" / "history.ingest", tmp_path / "victim"
    if writer.startswith("report, before"):
        place = place.with_suffix(".md")
    place.symlink_to(victim)
    content = {"nothing": None, "an empty file": b"", "a file": b"precious"}[leads_to]
    if content is not None:
        victim.write_bytes(content)
    with suppress(ConfigError, StoreError, OSError):
        WRITERS[writer](place)
    assert (victim.read_bytes() if victim.exists() else None) == content
    assert place.is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
@pytest.mark.parametrize("leads_to", ["nothing", "an empty file"])
@pytest.mark.parametrize("writer", ["sqlite", "ledger"])
def test_a_link_that_is_planted_while_a_database_is_opened_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, leads_to: str
) -> None:
    place, victim = tmp_path / "index.ingest", tmp_path / "victim"
    if leads_to == "an empty file":
        victim.touch()
    connect = sqlite3.connect

    def swap_and_connect(database: Any, *args: Any, **options: Any) -> Any:
        if place.name in str(database) and not place.is_symlink():
            place.unlink()
            place.symlink_to(victim)
        return connect(database, *args, **options)

    monkeypatch.setattr(sqlite3, "connect", swap_and_connect)
    with pytest.raises(StoreError):
        WRITERS[writer](place)
    assert place.is_symlink()
    assert (victim.read_bytes() if victim.exists() else None) == (
        b"" if leads_to == "an empty file" else None
    )
