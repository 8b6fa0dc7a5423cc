"""What is installed: the wheel and the source distribution, built here once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOR_US: Final = {"dev", "docs", "thorough"}
"""The extras that only who works on the project needs."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what was built."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=200)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("*.whl")
    return zipfile.ZipFile(path)


def files_below(folder: str) -> set[str]:
    """What stands in the repository below *folder*, without what running it leaves there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("not in a checkout")
    return {name for name in found.stdout.split() if (ROOT / name).exists()}


def test_the_wheel_holds_the_package_and_the_presets_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    presets = {f"qtmiddleware/config/presets/{Path(name).name}" for name in files_below("config")}
    assert held == files_below("qtmiddleware") | presets


def test_the_source_distribution_holds_what_the_wheel_is_made_of_and_no_test(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert files_below("qtmiddleware") | files_below("config") | files_below("docs") <= held
    assert {"tests", "benchmarks", "scripts"} & {name.partition("/")[0] for name in held} == set()


def test_presets_and_schema_are_found_where_there_is_no_checkout(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path / "site")
    code = (
        "import sys, qtmiddleware as qtm; from qtmiddleware.kit.cli import main;"
        "print(qtm.__file__, qtm.Config.load('auto').settings.escalation.mode); main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "config", "init", "--preset", "auto"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    told = f"{tmp_path}/site/qtmiddleware/__init__.py auto query-transform.config.json"
    assert ended.stdout.split() == told.split()
    schema = (tmp_path / "qtmiddleware.schema.json").read_bytes()
    assert schema == (ROOT / "config/schema.json").read_bytes()


def test_every_extra_that_a_message_names_exists() -> None:
    told: set[str] = set()
    for path in (ROOT / "qtmiddleware").rglob("*.py"):
        text = path.read_text("utf-8")
        told |= set(re.findall(r'MissingExtra\("?[\w-]+"?, "(\w+)"\)', text))
        for names in re.findall(r"qtmiddleware\[([a-z,]+)\]", text):
            told |= set(names.split(","))
    known = set(PROJECT["optional-dependencies"]) - FOR_US
    assert {"cli", "eval", "local"} <= told <= known
