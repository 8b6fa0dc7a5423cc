"""What becomes of the process that reads documents."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.ingest_world import World
from tests.support.office_files import write_word_file


def sources(world: World) -> set[str]:
    return {metadata["source"] for _, metadata, _ in world.passages().values()}


@pytest.fixture
def modules(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that the process that reads documents finds first."""
    folder = world.folder / "modules"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def test_a_reader_that_dies_and_a_missing_package_each_take_one_file_of_a_folder(
    world: World,
    modules: Path,
) -> None:
    (modules / "pypdf.py").write_text("import os\ndef PdfReader(_):\n    os._exit(3)\n")
    (modules / "docx.py").write_text("raise ImportError")
    write_word_file(world.docs)
    world.write("report.pdf", "%PDF")
    report = world.ingest()
    died, missing = sorted(report.skipped, key=lambda it: it.extra)
    assert (Path(died.path).name, died.reason.partition(" (")[0], died.extra) == (
        *("report.pdf", "its reader failed", ""),
    )
    assert (Path(missing.path).name, missing.extra) == ("report.docx", "documents")
    assert "python-docx is not installed" in missing.reason
    assert sources(world) == {"alpha.txt", "gamma.txt", "sub/beta.md"}
