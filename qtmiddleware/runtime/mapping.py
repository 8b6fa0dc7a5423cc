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
    function: Callable[[T], R], items: Iterable[T], bulkhead: Bulkhead, max_calls: int
) -> Iterator[R]:
    """Yield the result of *function* for each item, in the order in which the calls end.

    The first exception of a call or of *items* ends the iteration and is raised here. If the
    iteration ends early, because of an exception or because this generator is closed, the calls
    that are still running are not awaited.

    Args:
        function: The function to call with each item.
        items: The items. The caller's thread reads them.
        bulkhead: Provides the threads.
        max_calls: The maximum number of calls at once.
    """
    done: SimpleQueue[Future[R]] = SimpleQueue()
    under_way = 0
    for item in items:
        _start_call(function, item, bulkhead).add_done_callback(done.put)
        under_way += 1
        if under_way >= max_calls:
            yield done.get().result()
            under_way -= 1
    for _ in range(under_way):
        yield done.get().result()


def map_in_order(
    function: Callable[[T], R], items: Iterable[T], bulkhead: Bulkhead, max_calls: int
) -> Iterator[R]:
    """Yield the result of *function* for each item, in the order of *items*.

    Like `map_as_completed`, except for the order. A slow call delays the results after it. At
    most *max_calls* results are computed ahead.
    """
    under_way: deque[Future[R]] = deque()
    for item in items:
        under_way.append(_start_call(function, item, bulkhead))
        if len(under_way) >= max_calls:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _start_call(function: Callable[[T], R], item: T, bulkhead: Bulkhead) -> Future[R]:
    """Call *function* with *item* in a thread of *bulkhead*, and return a future for the result."""
    future: Future[R] = Future()
    bulkhead.start(partial(copy_context().run, _perform_call, function, item, future))
    return future


def _perform_call(function: Callable[[T], Any], item: T, future: Future[Any]) -> None:
    try:
        future.set_result(function(item))
    # In this thread nobody else would notice an interrupt or exit.
    except BaseException as error:
        future.set_exception(error)
