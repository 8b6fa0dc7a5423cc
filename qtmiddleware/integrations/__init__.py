"""Adapters to other frameworks, in one file or folder per framework.

Only that file or folder imports the framework. An adapter is a class of its framework, and holds a
function that `QueryMiddleware.wrap` wrapped. The adapter passes the question, the number of
passages and the conversation to the function, and turns the matches into the framework's own
objects. The adapter imports its framework inside a ``with needs(...)`` block. To write a new
adapter, start from `langchain.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from qtmiddleware.errors import MissingExtra


@contextmanager
def needs(package: str, lowest: str, *, extra: str) -> Iterator[None]:
    """Import an optional *package* inside the ``with`` block, after a check of its version.

    Raises `MissingExtra` if *package* is missing or older than the *lowest* version that works.
    The error names the *extra* that installs the package.
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
