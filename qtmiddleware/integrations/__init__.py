"""The middleware in other people's frameworks: a thin file or folder each, which loads its framework and no other.

An adapter is a class of its framework around a function that `QueryMiddleware.wrap` wrapped: it
passes the question, the number of passages and the conversation on, and makes the framework's own
objects of the matches. `needs` is around its imports. Whoever adds one begins with `langchain.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from qtmiddleware.errors import MissingExtra


@contextmanager
def needs(package: str, lowest: str, *, extra: str) -> Iterator[None]:
    """Around the imports of a framework: raises `MissingExtra` where *package* is absent or older than *lowest*."""
    # What came without metadata is taken as it is; what is not there fails below.
    found = find_version(package) or lowest
    if _read_version(found) < _read_version(lowest):
        raise MissingExtra(f"{package} {lowest} or newer (here is {found})", extra)
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{package} {lowest} or newer", extra) from error


def find_version(package: str) -> str:
    """Return the installed version of *package*; ``""`` without metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _read_version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)[:3]]
