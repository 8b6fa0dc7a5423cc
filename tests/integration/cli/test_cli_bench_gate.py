"""``qtm bench --baseline``: whether retrieval got worse, in a folder of the user's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bench_world import bridges_data, write_data
from tests.support.command_line import Ended
from tests.support.waiting import wait_until

Run = Callable[..., Ended]
MODULE = '''
import os
import pathlib

print("imported")


def search(query, top_k=10):
    """Finds the passage of the number in the question, or in bad times only behind others."""
    with open("calls", "a") as file:
        file.write(query + "\\n")
    number = int(query.split()[-1].strip("?"))
    behind = int(os.environ.get("BEHIND", "0")) if number < int(os.environ.get("OF", "40")) else 0
    if os.environ.get("FAILS") and 3 < number < 15:
        raise TimeoutError("no answer")
    while os.environ.get("WAITS") and number == 3 and not pathlib.Path("go").exists():
        pass
    ids = [f"p{(number + at + 1) % 40}" for at in range(behind)] + [f"p{number}"]
    return [{"id": id, "score": 1 / (1 + at), "text": f"passage {id}"} for at, id in enumerate(ids)][:top_k]
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path)
    return tmp_path


def write_files(folder: Path) -> None:
    (folder / "app.py").write_text(MODULE, encoding="utf-8")
    write_questions(folder / "questions.csv", 40)


def write_questions(path: Path, count: int) -> None:
    rows = "".join(f"Where is number {number}?,p{number}\n" for number in range(count))
    path.write_text(f"question,id\n{rows}", encoding="utf-8")


ARGUMENTS = ("bench", "--function", "app:search", "--systems", "off")


@pytest.fixture
def bench(qtm: Run, folder: Path) -> Run:
    def run(*arguments: str, data: str = "questions.csv", **environ: str) -> Ended:
        return qtm(*ARGUMENTS, "--data", data, *arguments, folder=folder, **environ)

    return run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the command prints in good times."""
    folder = tmp_path_factory.mktemp("good")
    write_files(folder)
    running = start(folder, "--json")
    told, said = running.communicate(timeout=200)
    assert running.returncode == 0, said
    return told


@pytest.fixture
def base(measured: str, folder: Path) -> str:
    """A baseline of good times."""
    (folder / "base.json").write_text(measured)
    return "base.json"


def test_the_same_function_again_is_not_worse(bench: Run, base: str) -> None:
    ended = bench("--baseline", base, "--fail-if", "worse")
    assert ended.code == 0, ended.err
    *_, headline, raw = ended.out.splitlines()
    assert headline == "Found no loss that is more than chance. The baseline is base.json."
    assert raw == "“off”: no change in 40 questions."


def test_a_loss_ends_with_3_and_says_so_to_people_programs_and_the_pull_request(
    bench: Run, base: str, folder: Path
) -> None:
    asked = ("--baseline", base, "--fail-if", "worse", "--json")
    ended = bench(*asked, "--report", "out.md", BEHIND="2", OF="15")
    assert ended.code == 3, ended.err
    told = json.loads(ended.out)["gate"]
    assert (told["verdict"], told["failIf"], told["questions"]) == ("worse", "worse", 40)
    (raw,) = told["systems"]
    assert (raw["verdict"], raw["worse"], raw["better"], raw["before"]) == ("worse", 15, 0, 1.0)
    assert told["sentences"][0] == "Retrieval got worse with “off”. The baseline is base.json."
    report = (folder / "out.md").read_text(encoding="utf-8")
    assert report.startswith("# Retrieval got worse with “off”.\n")
    assert "The report is in out.md." in ended.err


def test_what_the_report_wrote_is_a_baseline_too(bench: Run, folder: Path) -> None:
    assert bench("--report", "out.json").code == 0
    ended = bench(
        "--baseline", "out.json", "--fail-if", "worse", "--report", "out.json", BEHIND="3"
    )
    assert (ended.code, ended.out.splitlines()[-2].partition(".")[0]) == (
        3,
        "Retrieval got worse with “off”",
    )
    # That was the report of the run that got worse.
    assert bench("--baseline", "out.json", "--fail-if", "worse", BEHIND="3").code == 0


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines()) if (folder / "calls").exists() else 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fail-if", "worse"), "--fail-if needs --baseline"),
        (
            ("--baseline", "none.json"),
            (
                "the baseline none.json cannot be used (none.json cannot be read: No such file or"
                " directory); write it with"
            ),
        ),
        (("--baseline", "base.json", "--fail-if", "r@100 -0.1"), "--fail-if must be worse, or"),
        (
            ("--baseline", "base.json", "--questions", "30"),
            "was measured on other questions and judgements, so",
        ),
        (
            ("--baseline", "base.json", "--report", "app.py/out.md"),
            "app.py/out.md cannot be written",
        ),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_measured(
    bench: Run, base: str, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    whole = (folder / base).read_text()
    ended = bench(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err.splitlines()[-1]
    assert calls(folder) == 0
    assert (folder / base).read_text() == whole


@pytest.mark.thorough
def test_passages_that_changed_are_noticed_before_they_are_embedded(
    qtm: Run, tmp_path: Path
) -> None:
    data = bridges_data()
    write_data(tmp_path / "set", data)
    asked = ("bench", "--data", "set", "--systems", "rules")
    (tmp_path / "base.json").write_text(qtm(*asked, "--json").out)
    corpus = tmp_path / "set" / "corpus.jsonl"
    kept = sorted(path.name for path in (tmp_path / ".qtm" / "bench").iterdir())
    corpus.write_text(corpus.read_text().replace("Bridge", "Viaduct"))
    ended = qtm(*asked, "--baseline", "base.json", "--fail-if", "worse")
    assert (ended.code, ended.out) == (2, "")
    assert (
        "the baseline base.json was measured on other passages, so it cannot be compared"
        in ended.err
    )
    assert sorted(path.name for path in (tmp_path / ".qtm" / "bench").iterdir()) == kept


def start(folder: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from qtmiddleware.kit.cli import main; main()", *ARGUMENTS]
    return subprocess.Popen(
        [*command, "--data", "questions.csv", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_that_nobody_reads_the_output_does_not_hide_the_loss(
    base: str, folder: Path, form: tuple[str, ...]
) -> None:
    running = start(
        folder, "--baseline", base, "--fail-if", "worse", "--report", "out.md", *form, BEHIND="2"
    )
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(timeout=200) == 3
    assert (folder / "out.md").exists()
    assert running.stderr is not None
    assert "Traceback" not in running.stderr.read()
    running.stderr.close()


@pytest.mark.skipif(os.name != "posix", reason="processes are signalled as on POSIX here")
def test_ctrl_c_leaves_no_report_and_the_baseline_as_it_was(base: str, folder: Path) -> None:
    whole = (folder / base).read_text()
    running = start(
        folder, "--baseline", base, "--fail-if", "worse", "--report", "out.md", WAITS="1"
    )
    wait_until(lambda: calls(folder) == 4)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=200)
    assert (running.returncode, said.splitlines()[-1]) == (130, "qtm: interrupted")
    assert (folder / base).read_text() == whole
    assert not (folder / "out.md").exists()
