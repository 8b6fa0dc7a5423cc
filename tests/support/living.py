"""What is alive in this process, told apart from what was alive before: other tests leave things behind that end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable
from typing import Any


def objects(kind: Callable[[object], bool]) -> list[object]:
    """Every object of the *kind* that nothing has freed yet."""
    gc.collect()
    return [it for it in gc.get_objects() if kind(it)]


def tasks_left() -> set[asyncio.Task[Any]]:
    """The tasks of the running loop beside this one, but for those of other tests' clients.

    A client of an SDK that is collected begins a task to close itself, in whatever loop runs then.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in tasks if not _closes_client(task.get_coro())}


def _closes_client(coroutine: Any) -> bool:
    code = getattr(coroutine, "cr_code", None)
    return code is not None and code.co_name == "aclose" and "site-packages" in code.co_filename


def count_new(kind: Callable[[object], bool], before: Iterable[object]) -> int:
    """How many objects of the *kind* there are beside those of *before*."""
    known = {id(it) for it in before}
    return sum(id(it) not in known for it in objects(kind))
