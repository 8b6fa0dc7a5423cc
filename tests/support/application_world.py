"""A user's application in a folder: a function, judged questions, and the commands that a page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.own_function import write_questions
from tests.support.conversing import read_plain_environment

ROOT = Path(__file__).parents[2]
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


def write_application(folder: Path) -> None:
    """Write the function, its questions and the command `qtm` into *folder*."""
    (folder / "app.py").write_text(APP, encoding="utf-8")
    write_questions(folder / "questions.csv")
    (folder / "bin").mkdir()
    (folder / "bin" / "qtm").write_text(QTM)
    (folder / "bin" / "qtm").chmod(0o755)


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
