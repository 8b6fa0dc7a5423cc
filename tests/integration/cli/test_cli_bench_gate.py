"""``qtm bench --baseline``: whether retrieval got worse, in a folder of the user's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended, run_here

Run = Callable[..., Ended]
MODULE = '''
import os
import pathlib


def search(query, top_k=10):
    """Finds the passage of the number in the question, or in bad times only behind others."""
    with open("calls", "a") as file:
        file.write(query + "\\n")
    number = int(query.split()[-1].strip("?"))
    behind = int(os.environ.get("BEHIND", "0")) if number < int(os.environ.get("OF", "40")) else 0
    while os.environ.get("WAITS") and number == 3 and not pathlib.Path("go").exists():
        pass
    ids = [f"p{(number + at + 1) % 40}" for at in range(behind)] + [f"p{number}"]
    return [{"id": id, "score": 1 / (1 + at), "text": f"passage {id}"} for at, id in enumerate(ids)][:top_k]
'''
ARGUMENTS = ["bench", "--function", "app:search", "--systems", "off", "--data", "questions.csv"]
GATE = "--baseline base.json"


def write_files(folder: Path) -> None:
    (folder / "app.py").write_text(MODULE, encoding="utf-8")
    rows = "".join(f"Where is number {number}?,p{number}\n" for number in range(40))
    (folder / "questions.csv").write_text(f"question,id\n{rows}", encoding="utf-8")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the command prints in good times."""
    folder = tmp_path_factory.mktemp("good")
    write_files(folder)
    return run_here([*ARGUMENTS, "--json"], b"", folder, {}).out


@pytest.fixture
def folder(measured: str, tmp_path: Path) -> Path:
    """A folder with a baseline of good times."""
    write_files(tmp_path)
    (tmp_path / "base.json").write_text(measured)
    return tmp_path


@pytest.fixture
def bench(qtm: Run, folder: Path) -> Run:
    return lambda arguments, **environ: qtm(*ARGUMENTS, *arguments.split(), **environ)


def test_the_same_function_again_is_not_worse(bench: Run) -> None:
    ended = bench(GATE)
    assert ended.code == 0, ended.err
    *_, headline, off = ended.out.splitlines()
    assert headline == "Found no loss that is more than chance. The baseline is base.json."
    assert off == "“off”: no change in 40 questions."


def test_a_loss_ends_with_3_and_says_so_to_people_programs_and_the_pull_request(
    bench: Run, folder: Path
) -> None:
    ended = bench(f"{GATE} --json --report out.md", BEHIND="2", OF="15")
    assert ended.code == 3, ended.err
    told = json.loads(ended.out)["gate"]
    assert (told["verdict"], told["measure"], told["questions"]) == ("worse", "nDCG@10", 40)
    (off,) = told["systems"]
    assert (off["verdict"], off["worse"], off["better"], off["before"]) == ("worse", 15, 0, 1.0)
    assert told["sentences"][0] == "Retrieval got worse with “off”. The baseline is base.json."
    report = (folder / "out.md").read_text(encoding="utf-8")
    assert report.startswith("# Retrieval got worse with “off”.\n")
    assert "These lost most:" in report


def count_calls(folder: Path) -> int:
    calls = folder / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--baseline none.json", "the baseline none.json cannot be used (none.json cannot be read"),
        ("--baseline base.json --questions 30", "measured on other questions and judgements, so"),
        ("--baseline base.json --report app.py/out.md", "app.py/out.md cannot be written"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_measured(
    bench: Run, folder: Path, arguments: str, said: str
) -> None:
    ended = bench(arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err.splitlines()[-1]
    assert count_calls(folder) == 0


def start(folder: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    main = "from qtmiddleware.kit.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", main, *ARGUMENTS, *GATE.split(), *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_that_nobody_reads_the_output_does_not_hide_the_loss(
    folder: Path, form: tuple[str, ...]
) -> None:
    with start(folder, *form, BEHIND="2") as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(timeout=200) == 3
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()
