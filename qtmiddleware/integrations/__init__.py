"""Adapters to other frameworks, in one file or folder per framework.

Only that file or folder imports the framework. An adapter is a class of its framework. It holds a
function that `QueryMiddleware.wrap` wrapped. The adapter passes the question, the number of
passages and the conversation to that function, and turns the matches into the framework's own
objects. Its imports stand under `needs`. A new adapter begins as `langchain.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from qtmiddleware.errors import MissingExtra


@contextmanager
def needs(package: str, lowest: str, *, extra: str) -> Iterator[None]:
    """Check the version of *package* before its imports run, and report imports that fail.

    Raises `MissingExtra` if *package* is missing or older than *lowest*. The error names the
    *extra* that installs the package.
    """
    # A package without metadata is accepted as it is. A missing package fails at its import below.
    installed = find_version(package) or lowest
    if _parse_version(installed) < _parse_version(lowest):
        raise MissingExtra(f"{package} {lowest} or newer (here is {installed})", extra)
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{package} {lowest} or newer", extra) from error


def find_version(package: str) -> str:
    """Return the installed version of *package*, or ``""`` if its metadata is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _parse_version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)[:3]]
