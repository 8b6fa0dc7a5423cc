"""Makes a release: ``scripts/release 0.1.0``.

Without ``--do-it`` nothing changes: a copy of the checkout is released, built and checked, and what
is missing is listed. With it the version, the changelog and the install commands are written,
committed and tagged. Nothing is ever pushed or published from here: the tag, once pushed, starts
``.github/workflows/release.yml``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from scripts.project import ROOT, read_repository, read_version, write_version

CHECKS: Final = ("scripts/build", "scripts/check-wheel", "scripts/lock", "scripts/sbom")
"""What a release must pass; `.github/workflows/release.yml` runs the same."""
INSTALL: Final[tuple[tuple[str, str], ...]] = (
    (
        r"qtmiddleware is not published on a package index yet\. Install it from a checkout with",
        "Install it with",
    ),
    (r"pip install \. {11}", "pip install qtmiddleware           "),
    (r'"\.\[([a-z,]+)\]"', r'"qtmiddleware[\1]"'),
    (r" +# in a checkout of the project", ""),
    (r"# in a checkout; ", "# "),
    (r"` in a checkout\)", "`)"),
    (r"In a checkout, `pip", "`pip"),
)
"""What README and guides say as long as the package is on no index, and what they say from then on."""
NOT_YET: Final = re.compile(r"not published|checkout|pip install \"?\.(?:\[| )")


def run(*command: str, root: Path = ROOT) -> str:
    """Return what *command* prints in the folder *root*; raises `CalledProcessError` if it fails."""
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def read_release(root: Path, version: str) -> str:
    """Return what the changelog says of *version*, ``""`` if it has no such section."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    found = re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)",
        text,
        re.DOTALL | re.MULTILINE,
    )
    return found[1].strip() if found else ""


def date_changelog(text: str, version: str, day: date) -> str:
    """Return the changelog *text* with the *day* in the heading of *version*."""
    heading = f"## {version} (not released yet)\n"
    if heading not in text:
        raise ValueError(f'CHANGELOG.md must have the heading "{heading.strip()}".')
    return text.replace(heading, f"## {version} - {day}\n", 1)


def tell_how_to_install(text: str) -> str:
    """Return the page *text* with commands that install from an index."""
    for pattern, replacement in INSTALL:
        text = re.sub(pattern, replacement, text)
    return text


def list_pages(root: Path) -> list[Path]:
    """Return the pages that say how to install."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def find_obstacles(root: Path, version: str) -> list[str]:
    """Return what must be done before *version* can be released from the checkout *root*, a sentence each."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return [f"The version must be three numbers such as 0.1.0, not {version!r}."]
    tags = run("git", "tag", "--list", "v*", root=root).split()
    if f"v{version}" in tags:
        found.append(f"The tag v{version} is there already: choose the next version.")
    if as_numbers(version) < as_numbers(read_version(root)):
        found.append(f"The version must not be lower than the present one, {read_version(root)}.")
    if run("git", "status", "--porcelain", root=root):
        found.append("The checkout has changes that are not committed: commit or discard them.")
    try:
        date_changelog((root / "CHANGELOG.md").read_text("utf-8"), version, date.min)
    except ValueError as error:
        found.append(str(error))
    if not read_repository(root):
        found.append(
            "The repository's address is unknown, and what is published cannot be changed: set `repository` under "
            "[tool.hatch.metadata.hooks.custom] in pyproject.toml."
        )
    return found


def as_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a *version*."""
    return tuple(map(int, version.split(".")))


def write_release(root: Path, version: str, day: date) -> None:
    """Write what a release of *version* changes in the checkout *root*."""
    write_version(version, root)
    changelog = root / "CHANGELOG.md"
    changelog.write_text(date_changelog(changelog.read_text("utf-8"), version, day), "utf-8")
    for page in list_pages(root):
        page.write_text(tell_how_to_install(page.read_text("utf-8")), "utf-8")
        if found := NOT_YET.search(page.read_text("utf-8")):
            raise ValueError(
                f"{page.relative_to(root)} still tells of a checkout ({found[0]!r}): change INSTALL here."
            )


def try_release(version: str, day: date, tell: Callable[[str], None]) -> None:
    """Release, build and check a copy of the checkout, and bring back what was built."""
    environ = os.environ | {
        "VENV": str(ROOT / os.environ.get("VENV", ".venv")),
        "RELEASE_TOOLS": str(ROOT / ".tmp/release-tools"),
    }
    with TemporaryDirectory() as folder:
        copy = Path(folder, "qtmiddleware")
        run("git", "clone", "--quiet", "--shared", str(ROOT), str(copy))
        write_release(copy, version, day)
        run("git", "add", "--all", root=copy)
        print(run("git", "diff", "--cached", "--stat", root=copy))
        for check in CHECKS:
            tell(check)
            subprocess.run([str(copy / check)], cwd=copy, env=environ, check=True)
        for built in ("dist", "release"):
            shutil.rmtree(ROOT / built, ignore_errors=True)
            shutil.copytree(copy / built, ROOT / built)


def commit_release(version: str, day: date) -> None:
    """Write, commit and tag the release of *version* in this checkout."""
    write_release(ROOT, version, day)
    run("git", "add", "--all")
    run("git", "commit", "--quiet", "--message", f"Release {version}")
    run("git", "tag", "--annotate", f"v{version}", "--message", f"qtmiddleware {version}")


def list_steps(version: str, branch: str, repository: str) -> str:
    """Return what is left to the owner."""
    forge = repository or "the repository"
    return f"""\
Once, before the first release:
  - On the package index, add a trusted publisher for the new project qtmiddleware: the owner and name of
    {forge}, the workflow release.yml, the environment pypi.
  - In the settings of {forge}: an environment `pypi` that waits for your approval and admits tags v* alone, an
    environment `github-pages`, pages from a workflow, private reports of vulnerabilities, and a rule that nobody
    moves a tag v*.
Each time:
  1. scripts/release {version} --do-it     commits and tags here, and pushes nothing
  2. git push origin {branch} v{version}
  3. Approve the job `Publish` of the workflow `release` when the others have passed.
  4. In an empty environment: pip install qtmiddleware=={version}
What is published cannot be changed. A release with a mistake is yanked on the index, and the next one has the fix."""


def check_tag(tag: str) -> list[str]:
    """Return what is wrong with the checkout as the release of *tag*."""
    version, found = read_version(), []
    if tag != f"v{version}":
        found.append(f"The tag must be v{version}, as in the package, not {tag}.")
    if not read_release(ROOT, version):
        found.append(f"CHANGELOG.md must have a section of {version} with its date.")
    if not read_repository():
        found.append("pyproject.toml must have the repository's address.")
    return found


def main() -> int:
    """Try or make a release; returns 1 if anything is missing."""
    parser = argparse.ArgumentParser(
        prog="scripts/release", description=(__doc__ or "").split("\n\n", 1)[1]
    )
    parser.add_argument(
        "version", help="such as 0.1.0; with --check-tag or --notes the tag, such as v0.1.0"
    )
    parser.add_argument(
        "--do-it", action="store_true", help="write, commit and tag; nothing is pushed"
    )
    parser.add_argument(
        "--date", type=date.fromisoformat, help="the day in the changelog; today by default"
    )
    parser.add_argument(
        "--check-tag",
        action="store_true",
        help="only check that this checkout is what the tag names",
    )
    parser.add_argument(
        "--notes", action="store_true", help="only print what the changelog says of the tag"
    )
    options = parser.parse_args()
    version, day = options.version, options.date or datetime.now(UTC).date()
    if options.notes:
        print(read_release(ROOT, version.removeprefix("v")))
        return 0
    obstacles = check_tag(version) if options.check_tag else find_obstacles(ROOT, version)
    for obstacle in obstacles:
        print(f"not ready: {obstacle}", file=sys.stderr)
    if options.check_tag or (obstacles and options.do_it):
        return bool(obstacles)
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        return 1
    try_release(version, day, lambda check: print(f"\n== {check}", flush=True))
    if options.do_it:
        commit_release(version, day)
        print(f"\nCommitted and tagged as v{version}; nothing was pushed.\n")
    else:
        print(
            f"\nTried in a copy: this checkout is as it was; dist/ and release/ have what {version} would be.\n"
        )
    print(list_steps(version, run("git", "branch", "--show-current"), read_repository()))
    return bool(obstacles)


if __name__ == "__main__":
    sys.exit(main())
