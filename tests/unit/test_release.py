"""What `scripts/release` writes and refuses, in a checkout of its own."""

from __future__ import annotations

import subprocess
from datetime import date
from pathlib import Path

import pytest

from scripts import release
from scripts.project import read_version

DAY = date(2026, 12, 1)
CHANGELOG = "# Changelog\n\n## 0.2.0 (not released yet)\n\n- Added a rule.\n\n## 0.1.0 - 2026-01-01\n\n- Began.\n"


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "qtmiddleware/__init__.py": '"""A package."""\n\n__version__ = "0.1.0"\n',
        "CHANGELOG.md": CHANGELOG,
        "README.md": "Install it:\n\n    pip install .           # all of it\n",
        "docs/start.md": '`pip install ".[demo]"`\n',
        "pyproject.toml": '[tool.hatch.metadata.hooks.custom]\nrepository = "https://forge.example/owner/name"\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_a_clean_checkout_with_a_changelog_can_be_released(root: Path) -> None:
    assert release.find_obstacles(root, "0.2.0") == []


def test_everything_that_is_missing_is_said_at_once(root: Path) -> None:
    (root / "pyproject.toml").write_text('[tool.hatch.metadata.hooks.custom]\nrepository = ""\n')
    git(root, "tag", "v0.0.1")
    said = " ".join(release.find_obstacles(root, "0.0.1"))
    for part in (
        "v0.0.1 is there",
        "lower than the present one, 0.1.0",
        "not committed",
        'the heading "## 0.0.1 (not released yet)"',
    ):
        assert part in said
    assert "set `repository`" in said


@pytest.mark.parametrize("version", ["v0.1.0", "0.1", "0.1.0rc1", ""])
def test_a_version_is_three_numbers(root: Path, version: str) -> None:
    assert release.find_obstacles(root, version) == [
        f"The version must be three numbers such as 0.1.0, not {version!r}."
    ]


def test_a_release_writes_version_changelog_and_how_to_install(root: Path) -> None:
    release.write_release(root, "0.2.0", DAY)
    assert read_version(root) == "0.2.0"
    assert (root / "CHANGELOG.md").read_text("utf-8") == (
        "# Changelog\n\n## 0.2.0 - 2026-12-01\n\n- Added a rule.\n\n## 0.1.0 - 2026-01-01\n\n- Began.\n"
    )
    assert release.read_release(root, "0.2.0") == "- Added a rule."
    assert release.read_release(root, "0.1.0") == "- Began."
    assert "pip install qtmiddleware           # all of it" in (root / "README.md").read_text(
        "utf-8"
    )
    assert (root / "docs/start.md").read_text("utf-8") == '`pip install "qtmiddleware[demo]"`\n'


def test_no_page_tells_of_a_checkout_after_a_release() -> None:
    for page in release.list_pages(release.ROOT):
        assert (
            release.NOT_YET.search(release.tell_how_to_install(page.read_text("utf-8"))) is None
        ), page


def test_a_page_that_would_still_tell_of_a_checkout_stops_the_release(root: Path) -> None:
    (root / "docs/start.md").write_text("It is not published.\n")
    with pytest.raises(ValueError, match=r"docs/start\.md still tells"):
        release.write_release(root, "0.2.0", DAY)
