"""What docs/measuring.md shows, run as it stands on the questions of the demo."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.application_world import run, write_application

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/measuring.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{re.escape(kind)}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_application(tmp_path)
    return tmp_path


def change(folder: Path) -> None:
    """The change that the page speaks of."""
    app = folder / "app.py"
    app.write_text(app.read_text().replace("text.lower().split())", "text.lower().split()[:8])"))


pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="the page's commands are those of a POSIX shell"
)


def test_the_commands_and_the_steps_print_what_the_page_shows(folder: Path) -> None:
    assert run(folder, block("bash baseline")).returncode == 0
    change(folder)
    ended = run(folder, block("bash compare"))
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.endswith(block("text sentences"))
    compare, show = re.findall(
        r"^  run: (?:\|\n)?((?:.*\n)(?:    .*\n)*)", block("yaml"), re.MULTILINE
    )
    (folder / "report.md").unlink()
    assert run(folder, compare).returncode == 3
    assert run(folder, show).returncode == 0
    comment = (folder / "summary.md").read_text(encoding="utf-8")
    assert comment.startswith("# Retrieval got worse with “off”.")


def test_the_test_of_the_page_passes_and_fails_after_the_change(folder: Path) -> None:
    (folder / "test_retrieval.py").write_text(block("python test_retrieval.py"), encoding="utf-8")
    assert run(folder, block("bash baseline")).returncode == 0
    ended = run(folder, "pytest")
    assert ended.returncode == 0, ended.stdout
    change(folder)
    ended = run(folder, "pytest")
    assert ended.returncode == 1
    assert block("text sentences") in ended.stdout
