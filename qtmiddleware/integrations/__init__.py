"""Adapters for other frameworks. Each framework has its own file or folder.

Only that file or folder imports the framework, inside a ``with needs(...)`` block. A retriever
adapter passes the question, the number of passages and the conversation to a function that
`QueryMiddleware.wrap` returned. Then it converts the matches to the framework's own objects. To
write a new adapter, start from `langchain.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from qtmiddleware.errors import MissingExtra


@contextmanager
def needs(package: str, lowest: str, *, extra: str) -> Iterator[None]:
    """Raise `MissingExtra` if the ``with`` block cannot import the optional *package*.

    Also raises `MissingExtra` if *package* is older than the *lowest* supported version. The error
    names the *extra* that installs the package.
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
