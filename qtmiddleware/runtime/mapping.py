"""Apply a function to more items than fit in memory, in threads.

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


def map_as_done(
    call: Callable[[T], R], items: Iterable[T], bulkhead: Bulkhead, limit: int
) -> Iterator[R]:
    """Yield the result of *call* for each of *items*, in the order in which the calls end.

    The caller's thread reads the items; threads of *bulkhead* perform the calls. The first
    exception of a call or of *items* is raised here and ends the iteration. After an exception, or
    if this generator is closed, running calls are not awaited.

    Args:
        call: The function.
        items: The function's arguments, one per call.
        bulkhead: Provides the threads.
        limit: The most calls that run at the same time.
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
    """Yield the result of *call* for each of *items*, in the order of *items*.

    Apart from the order, this is `map_as_done`. A slow call delays the results after it; at most
    *limit* results are computed ahead.
    """
    under_way: deque[Future[R]] = deque()
    for item in items:
        under_way.append(_start_call(call, item, bulkhead))
        if len(under_way) >= limit:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _start_call(call: Callable[[T], R], item: T, bulkhead: Bulkhead) -> Future[R]:
    """Start *call* with *item* in a thread of *bulkhead* and return the future of its result."""
    future: Future[R] = Future()
    bulkhead.start(partial(copy_context().run, _perform_call, call, item, future))
    return future


def _perform_call(call: Callable[[T], Any], item: T, future: Future[Any]) -> None:
    try:
        future.set_result(call(item))
    except BaseException as error:
        future.set_exception(error)
