"""The commands of docs/measuring.md that fail CI, run as they stand on the questions of the demo."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.application_world import run, write_application

PAGE = (Path(__file__).parents[2] / "docs/measuring.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.mark.skipif(os.name != "posix", reason="the commands are those of a POSIX shell")
@pytest.mark.thorough
def test_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    write_application(tmp_path)
    assert run(tmp_path, block("bash baseline")).returncode == 0
    app = tmp_path / "app.py"  # the change that the page speaks of
    app.write_text(app.read_text().replace("text.lower().split())", "text.lower().split()[:8])"))
    ended = run(tmp_path, block("bash compare"))
    assert ended.returncode == 3, ended.stderr
    assert block("text sentences") in ended.stdout
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# Retrieval got worse with “off”.")
