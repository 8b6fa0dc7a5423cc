"""CONTRIBUTING's list of the files that a question passes through."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import REPLIES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(qtm.__file__).parent
QUESTION = "Does Jaco have any health concerns?"


def read_listed_paths() -> list[str]:
    """The files and folders that the section on the path of a query names."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## The path of a query")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    return [path for row in rows for path in re.findall(r"`([\w/.]+)`", row)]


@contextmanager
def recording_files() -> Iterator[set[str]]:
    """The package's files in which a function is called, in any thread, while this is entered."""
    called: set[str] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and PACKAGE in path.parents:
            called.add(path.relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield called
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    texts = ["Cats sleep a lot", "Jaco has no health concerns", "The fee is due", "Dogs bark"]
    return [{"id": str(at), "score": 0.9 - at / 10, "text": text} for at, text in enumerate(texts)][
        :top_k
    ]


@pytest.mark.parametrize("config", ["rules", "combined"])
def test_every_file_that_a_question_passes_through_is_on_the_list(config: str) -> None:
    model = ScriptedModel(REPLIES.get(config, {}))
    retrieve = qtm.QueryMiddleware(config, client=model).wrap(search)
    retrieve("Is the fee due?")  # the first call imports what the others use
    with recording_files() as called:
        retrieve(QUESTION)
    called -= {"testing.py"}  # the model's double
    assert "retrieval/pipeline.py" in called
    listed = read_listed_paths()
    assert [
        file
        for file in sorted(called)
        if not any(file == it or (it[-1] == "/" and file.startswith(it)) for it in listed)
    ] == []


def test_every_file_and_folder_on_the_list_is_there_once() -> None:
    listed = read_listed_paths()
    assert len(listed) > 30
    assert len(listed) == len(set(listed))
    assert [it for it in listed if not (PACKAGE / it).exists()] == []
