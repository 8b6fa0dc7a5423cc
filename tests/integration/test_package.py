"""What is installed: the wheel and the source distribution, built here once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Final

import pytest

import qtmiddleware as qtm

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOR_US: Final = {"dev", "docs", "thorough"}
"""The extras that only who works on the project needs."""


RELATIVE: Final = re.compile(r"\]\((?!https?:|#)[^)]*\)")
README: Final = (ROOT / "README.md").read_text("utf-8")


def find_code(text: str) -> list[str]:
    return re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)


def read_words(text: str) -> list[str]:
    """The words outside the targets of links."""
    return re.findall(r"\w+", re.sub(r"\]\([^)]*\)", "]", text))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what was built."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=ROOT,
        check=True,
        timeout=200,
    )
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
    needed = "py.typed config/presets/schema.json config/presets/auto.config.json preprocessing/lexicons/en.json"
    needed += (
        " transforms/prompts/rewrite.py kit/demo/data/corpus.jsonl kit/demo/small/corpus.jsonl"
    )
    needed += " kit/evaluation/page.html.jinja kit/evaluation/page.css"
    needed += " kit/playground/page.html.jinja kit/playground/static/page.css"
    assert {f"qtmiddleware/{name}" for name in needed.split()} <= held


def test_the_source_distribution_holds_what_the_wheel_is_made_of_and_no_test(
    dist: Path, wheel: zipfile.ZipFile
) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert files_below("qtmiddleware") | files_below("config") | files_below("docs") <= held
    assert {name.partition("/")[0] for name in held} <= {
        "qtmiddleware", "config", "docs", "pyproject.toml", "PKG-INFO", ".gitignore", "LICENSE", "constraints.txt",
        "requirements-model.txt", "README.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff",
    }  # fmt: skip


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
    assert ended.stdout.split() == [
        f"{tmp_path}/site/qtmiddleware/__init__.py",
        "auto",
        "query-transform.config.json",
    ]
    assert (tmp_path / "qtmiddleware.schema.json").read_bytes() == (
        ROOT / "config/schema.json"
    ).read_bytes()


def test_nothing_in_it_names_a_place_of_the_machine_it_was_built_on(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        assert str(ROOT).encode() not in wheel.read(name), name


def test_the_metadata_says_what_pyproject_says(wheel: zipfile.ZipFile) -> None:
    (name,) = (it for it in wheel.namelist() if it.endswith(".dist-info/METADATA"))
    told = Parser().parsestr(wheel.read(name).decode())
    assert (told["Name"], told["Version"]) == (PROJECT["name"], qtm.__version__)
    assert set(told.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert told["Requires-Python"] == PROJECT["requires-python"]
    assert told["Description-Content-Type"] == "text/markdown"


def test_the_description_has_the_words_and_code_of_the_readme_and_no_relative_link(
    wheel: zipfile.ZipFile,
) -> None:
    (name,) = (it for it in wheel.namelist() if it.endswith(".dist-info/METADATA"))
    text = Parser().parsestr(wheel.read(name).decode()).get_payload()
    assert RELATIVE.findall(text) == []
    assert list(find_code(text)) == list(find_code(README))
    assert read_words(text) == read_words(README)


def test_every_extra_that_a_message_names_exists() -> None:
    told: set[str] = set()
    for path in (ROOT / "qtmiddleware").rglob("*.py"):
        text = path.read_text("utf-8")
        told |= set(re.findall(r'MissingExtra\("?[\w-]+"?, "(\w+)"\)', text))
        told |= {
            it
            for names in re.findall(r"qtmiddleware\[([a-z,]+)\]", text)
            for it in names.split(",")
        }
    assert (
        {"cli", "eval", "local", "documents"}
        <= told
        <= set(PROJECT["optional-dependencies"]) - FOR_US
    )
