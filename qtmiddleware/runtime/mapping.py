"""Apply a function to an iterable in threads, even if the items do not fit in memory.

Only a few items are read ahead, and each result is yielded as soon as possible.
"""

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


def map_as_completed(
    call: Callable[[T], R], items: Iterable[T], bulkhead: Bulkhead, limit: int
) -> Iterator[R]:
    """Yield the result of *call* for each item, in the order in which the calls end.

    The first exception of a call or of *items* ends the iteration and is raised here. Calls that
    are still running then are not awaited. The same holds if this generator is closed.

    Args:
        call: The function to call with each item.
        items: The items. The caller's thread reads them.
        bulkhead: Provides the threads.
        limit: The maximum number of calls at once.
    """
    done: SimpleQueue[Future[R]] = SimpleQueue()
    under_way = 0
    for item in items:
        _start_call(call, item, bulkhead).add_done_callback(done.put)
        under_way += 1
        if under_way >= limit:
            yield done.get().result()
            under_way -= 1
    for _ in range(under_way):
        yield done.get().result()


def map_in_order(
    call: Callable[[T], R], items: Iterable[T], bulkhead: Bulkhead, limit: int
) -> Iterator[R]:
    """Yield the result of *call* for each item, in the order of *items*.

    Apart from the order, this is `map_as_completed`. A slow call delays the results after it. At
    most *limit* results are computed ahead.
    """
    under_way: deque[Future[R]] = deque()
    for item in items:
        under_way.append(_start_call(call, item, bulkhead))
        if len(under_way) >= limit:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _start_call(call: Callable[[T], R], item: T, bulkhead: Bulkhead) -> Future[R]:
    """Start *call* with *item* in a thread of *bulkhead*, and return a future for the result."""
    future: Future[R] = Future()
    bulkhead.start(partial(copy_context().run, _perform_call, call, item, future))
    return future


def _perform_call(call: Callable[[T], Any], item: T, future: Future[Any]) -> None:
    try:
        future.set_result(call(item))
    # In this thread nobody else would notice an interrupt or exit.
    except BaseException as error:
        future.set_exception(error)
