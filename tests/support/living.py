"""What is alive in this process, told apart from what was alive before: other tests leave things behind that end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable


def objects(kind: Callable[[object], bool]) -> list[object]:
    """Every object of the *kind* that nothing has freed yet."""
    gc.collect()
    return [it for it in gc.get_objects() if kind(it)]


def count_new(kind: Callable[[object], bool], before: Iterable[object]) -> int:
    """How many objects of the *kind* there are beside those of *before*."""
    known = {id(it) for it in before}
    return sum(id(it) not in known for it in objects(kind))
