"""The workflows of the forge run scripts of the repository, with pinned actions and no more rights than they need."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
each_workflow = pytest.mark.parametrize("file", FILES, ids=lambda it: it.stem)
WRITES = {
    ("docs", "publish"): {"pages", "id-token"},
    ("release", "publish"): {"id-token"},
    ("release", "announce"): {"contents"},
}
"""What a job may write; every other one reads the repository and writes nothing."""


def load(file: Path) -> dict[str, Any]:
    # YAML 1.1 takes the key `on` for true.
    return yaml.load(file.read_text("utf-8"), Loader=yaml.BaseLoader)


def list_steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@each_workflow
def test_it_runs_when_code_lands_or_is_proposed_and_never_with_the_rights_of_who_reads_it(
    file: Path,
) -> None:
    assert set(load(file)["on"]) <= {"push", "pull_request"}


@each_workflow
def test_a_job_has_the_rights_that_it_needs_and_no_other(file: Path) -> None:
    workflow = load(file)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        rights = job["permissions"]
        assert {it for it, right in rights.items() if right == "write"} == WRITES.get(
            (file.stem, name), set()
        )
        assert {it for it, right in rights.items() if right != "write"} <= {"contents"}


@each_workflow
def test_an_action_is_pinned_by_a_hash_that_says_its_version(file: Path) -> None:
    for line in re.findall(r"uses:.*", file.read_text("utf-8")):
        assert re.fullmatch(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_an_action_has_the_same_version_everywhere() -> None:
    used = {step["uses"] for file in FILES for step in list_steps(load(file)) if "uses" in step}
    assert len({it.partition("@")[0] for it in used}) == len(used)


@each_workflow
def test_a_checkout_leaves_no_credentials_behind(file: Path) -> None:
    for step in list_steps(load(file)):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false"


@each_workflow
def test_each_step_runs_one_script_of_the_repository(file: Path) -> None:
    for step in list_steps(load(file)):
        if "run" in step:
            script = ROOT / shlex.split(step["run"])[0]
            assert script.parent in {ROOT / "scripts", ROOT / ".ci"}
            assert os.access(script, os.X_OK), script
            assert "\n" not in step["run"]
            assert "${{" not in step["run"]


@each_workflow
def test_every_job_has_an_end(file: Path) -> None:
    assert all(int(job["timeout-minutes"]) <= 120 for job in load(file)["jobs"].values())


def test_what_is_published_was_built_once_and_checked_and_no_script_runs_beside_it() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    builds = [
        name
        for name, job in jobs.items()
        if any(it.get("run") == "scripts/build" for it in job["steps"])
    ]
    assert builds == ["build"]
    assert (jobs["check"]["needs"], jobs["publish"]["needs"]) == ("build", "check")
    assert not any("run" in step or "checkout" in step["uses"] for step in jobs["publish"]["steps"])
    assert jobs["publish"]["environment"] == "pypi"
