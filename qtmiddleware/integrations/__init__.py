"""Connect qtmiddleware to other frameworks, with one file per framework.

No other module imports the framework. The import is inside a ``with require_package(...)`` block.

A retriever's file turns the framework's retriever into functions, and passages into the framework's
own objects. `adapter.py` does the rest. To write a new adapter, start from `langchain.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from qtmiddleware.errors import MissingExtra


@contextmanager
def require_package(
    package: str,
    lowest_version: str,
    *,
    extra: str,
) -> Iterator[None]:
    """Check that *package* can be imported in the ``with`` block.

    Raises `MissingExtra` if *package* is older than *lowest_version* or cannot be imported. The
    error names the *extra* that installs the package.
    """
    # A package without metadata is accepted. A missing package fails when the block imports it.
    installed = find_installed_version(package) or lowest_version
    if _parse_version(installed) < _parse_version(lowest_version):
        raise MissingExtra(f"{package} {lowest_version} or newer (here is {installed})", extra)
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{package} {lowest_version} or newer", extra) from error


def find_installed_version(package_name: str) -> str:
    """Return the installed version of *package_name*; ``""`` if its metadata is missing."""
    try:
        return version(package_name)
    except PackageNotFoundError:
        return ""


def _parse_version(version_text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version_text)[:3]]
