"""Everything the extras pull in is pinned in ``constraints.txt``, which the scripts install with, and nothing else."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[3]
EXTRAS: Final = ("thorough",)
OURS: Final = "qtmiddleware"
BUILD_NEEDS: Final = {
    "hatchling": ("packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers")
}
"""Of what pip installs apart to build the package, and removes again."""


def pinned() -> dict[str, str]:
    """The versions in the file, by name; a line that pins nothing fails."""
    lines = [
        line.strip() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    ]
    found = [
        re.fullmatch(r"([\w.-]+)==([\w.+!-]+)", line)
        for line in lines
        if line and not line.startswith("#")
    ]
    assert all(found)
    return {canonicalize_name(it[1]): it[2] for it in found if it}


def asked_by(name: str) -> list[str]:
    """What *name* asks for, with the conditions; of ourselves as the project's file has it, not as it was installed."""
    if name != OURS:
        return (requires(name) or []) if is_installed(name) else [*BUILD_NEEDS.get(name, ())]
    file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, built = file["project"], file["build-system"]
    extras = [
        f"{asked} {'and' if ';' in asked else ';'} extra == '{extra}'"
        for extra, all_asked in project["optional-dependencies"].items()
        for asked in all_asked
    ]
    return [*project["dependencies"], *built["requires"], *extras]


def pulled_in() -> set[str]:
    """All distributions that the extras ask for here, and what those ask for, as far as they are installed."""
    found: set[tuple[str, str]] = set()
    waiting = [(OURS, extra) for extra in EXTRAS]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for requirement in map(Requirement, asked_by(name)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                inner = canonicalize_name(requirement.name)
                waiting += [(inner, wanted) for wanted in ("", *requirement.extras)]
    return {name for name, _ in found} - {OURS}


def is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def test_every_distribution_the_extras_pull_in_is_pinned_to_what_was_tested() -> None:
    here = {name: version(name).partition("+")[0] for name in pulled_in() if is_installed(name)}
    pins = {name: found.partition("+")[0] for name, found in pinned().items()}
    assert {name: found for name, found in here.items() if pins.get(name) != found} == {}
    assert len(here) > 50


def test_what_builds_the_package_is_pinned() -> None:
    assert {"hatchling", *BUILD_NEEDS["hatchling"]} <= pinned().keys()


def test_promises_hang_on_the_oldest_versions_that_are_allowed() -> None:
    told = dict(
        re.findall(r"`([\w-]+)>=([\w.]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    )
    asked = {
        it.name: str(it.specifier).removeprefix(">=") for it in map(Requirement, asked_by(OURS))
    }
    assert told == {name: asked[name] for name in told}
    assert "sentence-transformers" in told


def test_the_model_is_pinned_by_its_hash() -> None:
    lines = (ROOT / "requirements-model.txt").read_text(encoding="utf-8")
    assert re.search(r"==[\w.]+\s*\\?\s*--hash=sha256:[0-9a-f]{64}", lines)
