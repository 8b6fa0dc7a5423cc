"""What docs/regression-gate.md shows, run as it stands on the questions of the demo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.own_function import write_questions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/regression-gate.md").read_text(encoding="utf-8")
APP = """
from qtmiddleware.kit.demo import load_dataset

TEXTS = {passage.id: passage.text for passage in load_dataset().passages}


def search(query: str, top_k: int = 10):
    asked = set(query.lower().strip("?").split())
    found = {id_: len(asked & set(text.lower().split())) for id_, text in TEXTS.items()}
    best = sorted(found, key=lambda id_: (-found[id_], id_))[:top_k]
    return [{"id": id_, "score": float(found[id_]), "text": TEXTS[id_]} for id_ in best]
"""
QTM = f"""#!/bin/sh
exec {sys.executable} -c "from qtmiddleware.kit.cli import main; main()" "$@"
"""
PYTEST = f"""#!/bin/sh
exec {sys.executable} -m pytest -p no:cacheprovider "$@"
"""


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{re.escape(kind)}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the function, its questions, and the two commands."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    write_questions(tmp_path / "questions.csv")
    for name, script in {"qtm": QTM, "pytest": PYTEST}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_", "PYTEST_"))
    }
    path = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{kept['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
    }
    summary = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**kept, **path, **summary},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


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
    (folder / "comment.md").unlink()
    assert run(folder, compare).returncode == 3
    assert run(folder, show).returncode == 0
    comment = (folder / "summary.md").read_text(encoding="utf-8")
    assert comment.startswith("**Retrieval got worse with “raw”.**")


def test_the_test_fails_as_the_page_shows(folder: Path) -> None:
    (folder / "test_retrieval.py").write_text(block("python test_retrieval.py"), encoding="utf-8")
    ended = run(folder, block("bash pytest"))
    assert ended.returncode == 0, ended.stdout
    assert "The baseline base.json was written." in ended.stdout
    change(folder)
    ended = run(folder, "pytest")
    assert ended.returncode == 1
    assert block("text failure").replace(".../", f"{folder}/") in ended.stdout
