"""A folder that somebody handed over runs none of its code beside a function that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CI = pytest.mark.thorough


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("statistics.py", "notes"),
        pytest.param("sitecustomize.py", "notes", marks=CI),
        pytest.param("rich.py", "notes", marks=CI),
        # A folder named like an installed package opens no door.
        pytest.param("statistics.py", "textwrap", marks=CI),
    ],
)
def test_no_module_of_the_working_folder_takes_the_place_of_another(
    tmp_path: Path, name: str, folder: str
) -> None:
    (tmp_path / name).write_text("open('RAN', 'w').close()")
    (tmp_path / "query-transform.config.json").write_text("{}")
    (tmp_path / folder).mkdir()
    qtm = str(Path(sys.executable).with_name("qtm"))
    command = [qtm, "check", "textwrap:wrap", "Is Jaco ill?"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=200, check=False)
    assert not (tmp_path / "RAN").exists()
