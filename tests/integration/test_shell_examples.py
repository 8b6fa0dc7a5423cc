"""The commands that fail CI in docs/measuring.md, and those of the skill, run as they stand on a user's application."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.own_function import write_questions
from tests.support.conversing import read_plain_environment

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/measuring.md").read_text(encoding="utf-8")
SKILL: Final = ROOT / "skills/improve-retrieval/SKILL.md"
TEXT: Final = SKILL.read_text(encoding="utf-8")
COMMANDS: Final = dict(re.findall(r"^```\w+ (\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))
APP: Final = """
from qtmiddleware.kit.demo import load_dataset

TEXTS = {passage.id: passage.text for passage in load_dataset().passages}


def search(query: str, top_k: int = 10):
    asked = set(query.lower().strip("?").split())
    found = {id_: len(asked & set(text.lower().split())) for id_, text in TEXTS.items()}
    best = sorted(found, key=lambda id_: (-found[id_], id_))[:top_k]
    return [{"id": id_, "score": float(found[id_]), "text": TEXTS[id_]} for id_ in best]
"""
QTM: Final = f"""#!/bin/sh
exec {sys.executable} -c "from qtmiddleware.kit.cli import main; main()" "$@"
"""
only_posix = pytest.mark.skipif(os.name != "posix", reason="they are those of a POSIX shell")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's function, judged questions, and the command `qtm`."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    write_questions(tmp_path / "questions.csv")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "qtm").write_text(QTM)
    (tmp_path / "bin" / "qtm").chmod(0o755)
    return tmp_path


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
    }
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**read_plain_environment(), **path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@only_posix
@pytest.mark.thorough
def test_the_commands_print_what_the_page_shows(folder: Path) -> None:
    assert run(folder, block("bash baseline")).returncode == 0
    app = folder / "app.py"  # the change that the page speaks of
    app.write_text(app.read_text().replace("text.lower().split())", "text.lower().split()[:8])"))
    ended = run(folder, block("bash compare"))
    assert ended.returncode == 3, ended.stderr
    assert block("text sentences") in ended.stdout
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# Retrieval got worse with “off”.")


def test_an_agent_finds_the_skill_by_its_name_and_knows_when_to_use_it() -> None:
    name, description = re.fullmatch(
        r"---\nname: (\S+)\ndescription: (.+)\n---\n.*", TEXT, re.DOTALL
    ).groups()
    assert name == SKILL.parent.name
    assert "Use when" in description
    assert len(description) <= 1024  # the longest that agents read


@only_posix
@pytest.mark.thorough
def test_the_commands_lead_from_a_function_to_a_measured_change(folder: Path) -> None:
    assert list(COMMANDS) == ["check", "measure", "wrap", "prove"]
    assert run(folder, COMMANDS["check"]).returncode == 0
    assert run(folder, COMMANDS["measure"]).returncode == 0
    assert (folder / "report.md").is_file()
    app = folder / "app.py"
    app.write_text(f"{app.read_text()}\n\n{COMMANDS['wrap']}", encoding="utf-8")
    proved = run(folder, COMMANDS["prove"])
    assert proved.returncode == 0, proved.stderr
    assert re.search(r"^yours ", proved.stdout, re.MULTILINE)
    raw = json.loads((folder / "base.json").read_text(encoding="utf-8"))
    assert [system["name"] for system in raw["systems"]] == ["off", "preprocessed as text", "rules"]
