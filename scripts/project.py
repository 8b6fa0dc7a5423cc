"""What the repository's files say of the project: ``python -m scripts.project`` warns of what is still unknown."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION_FILE = "qtmiddleware/__init__.py"
"""The only file that has the version."""
_VERSION = re.compile(r'(?<=^__version__ = ")[^"]+(?="$)', re.MULTILINE)


def read_version(root: Path = ROOT) -> str:
    """Return the version of the package in the checkout *root*."""
    found = _VERSION.search((root / VERSION_FILE).read_text("utf-8"))
    if found is None:
        raise ValueError(f'{VERSION_FILE} must have a line __version__ = "...".')
    return found[0]


def write_version(version: str, root: Path = ROOT) -> None:
    """Give the package in the checkout *root* another *version*."""
    path = root / VERSION_FILE
    path.write_text(_VERSION.sub(version, path.read_text("utf-8")), "utf-8")


def read_repository(root: Path = ROOT) -> str:
    """Return the address of the repository, ``""`` while it is unknown."""
    file = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    address: str = file["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    return address.rstrip("/")


def main() -> None:
    """Say on stderr what the package will lack."""
    from hatch_build import WARNING  # needs hatchling, which the site is built without

    if not read_repository():
        print(f"warning: {WARNING}", file=sys.stderr)


if __name__ == "__main__":
    main()
