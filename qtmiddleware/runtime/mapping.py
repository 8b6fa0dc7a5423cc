"""A function over more things than memory holds: some are taken ahead, each result is given as soon as it may be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from qtmiddleware.runtime.threads import Bulkhead

T = TypeVar("T")
R = TypeVar("R")


def map_as_done(
    call: Callable[[T], R], items: Iterable[T], bulkhead: Bulkhead, limit: int
) -> Iterator[R]:
    """What *call* returns for each of *items*, as it is done; at most *limit* of them are under way.

    *items* are taken in the caller's thread, and *call* is performed in threads of *bulkhead*. What
    either raises is raised here, and ends it; nobody waits for what is under way then, or when this
    is closed.
    """
    done: SimpleQueue[Future[R]] = SimpleQueue()
    under_way = 0
    for item in items:
        _start(call, item, bulkhead).add_done_callback(done.put)
        under_way += 1
        if under_way >= limit:
            yield done.get().result()
            under_way -= 1
    for _ in range(under_way):
        yield done.get().result()


def map_in_order(
    call: Callable[[T], R], items: Iterable[T], bulkhead: Bulkhead, limit: int
) -> Iterator[R]:
    """`map_as_done` in the order of *items*: a slow one holds up those behind it, of which *limit* are taken."""
    under_way: deque[Future[R]] = deque()
    for item in items:
        under_way.append(_start(call, item, bulkhead))
        if len(under_way) >= limit:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _start(call: Callable[[T], R], item: T, bulkhead: Bulkhead) -> Future[R]:
    future: Future[R] = Future()
    bulkhead.start(partial(copy_context().run, _perform, call, item, future))
    return future


def _perform(call: Callable[[T], Any], item: T, future: Future[Any]) -> None:
    try:
        future.set_result(call(item))
    except BaseException as error:
        future.set_exception(error)
