"""A folder that somebody handed over runs none of its code beside a function that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["statistics.py", "sitecustomize.py", "rich.py"])
def test_no_module_of_the_working_folder_takes_the_place_of_another(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("open('RAN', 'w').close()")
    (tmp_path / "query-transform.config.json").write_text("{}")
    qtm = str(Path(sys.executable).with_name("qtm"))
    command = [qtm, "check", "textwrap:wrap", "Is Jaco ill?"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=200, check=False)
    assert not (tmp_path / "RAN").exists()


def test_an_empty_folder_named_like_an_installed_package_opens_no_door(tmp_path: Path) -> None:
    (tmp_path / "textwrap").mkdir()
    (tmp_path / "statistics.py").write_text("open('RAN', 'w').close()")
    qtm = str(Path(sys.executable).with_name("qtm"))
    command = [qtm, "check", "textwrap:wrap", "Is Jaco ill?"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=200, check=False)
    assert not (tmp_path / "RAN").exists()
