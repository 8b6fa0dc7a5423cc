"""The fixture ``qtm_bench``, as it comes with the wheel into a folder that has nothing but a user's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
APP = """
import os
import qtmiddleware as qtm

IDS = [f"p{number}" for number in range(40)]


def search(query, top_k=10):
    number = int(query.split()[-1].strip("?"))
    behind = int(os.environ.get("BEHIND", "0"))
    found = [*IDS[number + 1 : number + 1 + behind], IDS[number], *IDS[: 3]]
    return [{"id": id, "score": 1 / (1 + at), "text": f"passage {id}"} for at, id in enumerate(found)][:top_k]


async def find(query, top_k=10, tenant=0):
    assert tenant == 42
    return search(query, top_k)


wrapped = qtm.middleware(search)
"""
TEST = """
from app import {function}


def test_retrieval(qtm_bench):
    gate = qtm_bench({function}, "questions.csv", baseline="base.json"{more})
    assert gate.verdict == "not worse"
"""
LOADED = """
import sys


def test_what_is_loaded():
    found = {name for name in sys.modules if name.partition(".")[0] == "qtmiddleware"}
    assert found == {
        "qtmiddleware", "qtmiddleware.errors", "qtmiddleware.integrations", "qtmiddleware.integrations.pytest",
        "qtmiddleware.moved",
    }
    assert not sys.modules.keys() & {"numpy", "scipy", "openai", "pydantic", "pinecone", "regex"}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is installed in."""
    folder = tmp_path_factory.mktemp("wheel")
    if given := os.environ.get("TEST_DIST"):
        dist = ROOT / given
    else:
        pytest.importorskip("hatchling")
        dist = folder / "dist"
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=200)
    (wheel,) = dist.glob("*.whl")
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(folder / "site"),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return folder / "site"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    rows = "".join(f"Where is number {number}?,p{number}\n" for number in range(36))
    (tmp_path / "questions.csv").write_text(f"question,id\n{rows}")
    return tmp_path


def write_test(folder: Path, function: str = "search", more: str = "") -> None:
    (folder / "test_retrieval.py").write_text(TEST.format(function=function, more=more))


def run(folder: Path, site: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    """Run pytest in *folder* with what is installed in *site*; returns its exit code and output."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_", "PYTEST_"))
    }
    # The plug-ins of this environment may load what this one must not.
    others = (
        "-p",
        "no:langsmith_plugin",
        "-p",
        "no:schemathesis",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:anyio",
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *others, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": f"{site}{os.pathsep}{folder}", **environ},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_run_that_does_not_use_the_fixture_loads_nothing_but_the_plug_in(
    site: Path, folder: Path
) -> None:
    (folder / "test_loaded.py").write_text(LOADED)
    code, told = run(folder, site)
    assert code == 0, told
    assert "qtm_bench" not in told


def test_a_baseline_is_written_compared_with_and_fails_the_test_of_what_got_worse(
    site: Path, folder: Path
) -> None:
    write_test(folder)
    code, told = run(folder, site)
    assert code == 1
    assert f"the baseline {folder / 'base.json'} cannot be read: No such file or directory" in told
    assert "or run pytest with --qtm-update-baseline" in told
    assert "Traceback" not in told
    code, told = run(folder, site, "--qtm-update-baseline")
    assert (code, "test_retrieval: The baseline base.json was written." in told) == (0, True), told
    written = (folder / "base.json").read_bytes()
    code, told = run(folder, site)
    assert (code, "test_retrieval: Found no loss that is more than chance." in told) == (0, True), (
        told
    )
    code, told = run(folder, site, BEHIND="2")
    assert code == 1
    assert "Retrieval got worse with “raw”." in told
    assert "of 36 questions, 36 got worse and 0 got better" in told
    assert "gate = qtm_bench(" not in told  # the sentence, and no code
    assert (folder / "base.json").read_bytes() == written


def test_an_asynchronous_function_with_arguments_and_a_wrapped_one_are_measured(
    site: Path, folder: Path
) -> None:
    write_test(folder, "find", ', arguments={"tenant": 42}, fail_if="mrr@10 -0.05"')
    assert run(folder, site, "--qtm-update-baseline")[0] == 0
    code, told = run(folder, site, BEHIND="1")
    assert (code, "MRR@10 fell from" in told) == (1, True), told
    write_test(folder, "wrapped", ', systems=["rules"]')
    assert run(folder, site, "--qtm-update-baseline")[0] == 0
    assert [it["name"] for it in json.loads((folder / "base.json").read_text())["systems"]] == [
        "raw",
        "rules",
        "yours",
    ]


def test_a_baseline_of_other_questions_fails_before_the_function_is_called(
    site: Path, folder: Path
) -> None:
    write_test(folder)
    assert run(folder, site, "--qtm-update-baseline")[0] == 0
    (folder / "questions.csv").write_text("question,id\nWhere is number 1?,p1\n")
    code, told = run(folder, site)
    assert code == 1
    assert "was measured on other questions and judgements, so it cannot be compared" in told
