"""Functions that return what will be there later: thread pool results, futures, awaitables."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.wrapping_world import QUERY, REWRITE, ids, middleware, rows

qm = middleware()


class Unlucky(Exception):
    """What a search raises that fails."""


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with ThreadPool(2) as threads:
        yield threads


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_the_result_of_a_thread_pool_is_waited_for(pool: ThreadPool) -> None:
    search = qm.wrap(lambda query, top_k=4: pool.apply_async(rows, (query,)))
    assert ids(search(QUERY)) == ["near", "far"]
    assert search.retrieve(QUERY).status == "full"


def test_a_future_is_waited_for(executor: ThreadPoolExecutor) -> None:
    search = qm.wrap(lambda query, top_k=4: executor.submit(rows, query))
    assert ids(search(QUERY)) == ["near", "far"]
    assert asyncio.run(search.aretrieve(QUERY)).status == "full"


def test_what_a_future_raises_is_raised_as_it_is(executor: ThreadPoolExecutor) -> None:
    error = Unlucky()

    def fails(query: str) -> Any:
        raise error

    with pytest.raises(Unlucky) as caught:
        qm.wrap(lambda query: executor.submit(fails, query))(QUERY)
    assert caught.value is error


def test_a_future_that_fails_for_a_variant_is_a_variant_that_failed(
    executor: ThreadPoolExecutor,
) -> None:
    def search(query: str) -> Future[Any]:
        future: Future[Any] = Future()
        if query == REWRITE:
            future.set_exception(Unlucky())
        else:
            future.set_result(rows())
        return future

    retrieval = qm.wrap(search).retrieve(QUERY)
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [
        ("search.rewrite", "failed"),
        ("search", "too_few_successes"),
    ]


async def later(query: str) -> Any:
    return rows(query)


async def test_a_plain_function_that_returns_a_coroutine_still_returns_what_can_be_awaited() -> (
    None
):
    pending = qtm.middleware(lambda query: later(query))(QUERY)
    assert inspect.isawaitable(pending)
    assert [row["id"] for row in await pending] == ["far", "near", "last"]


async def test_no_coroutine_is_left_unawaited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "qtmiddleware")  # a kept log record would keep the coroutine too
    search = qtm.middleware(lambda query, top_k=4: later(query))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(await search(QUERY)) == 3
        gc.collect()  # a coroutine nobody awaited warns when it goes
    assert [it.category for it in told] == [qtm.SetupWarning]
    assert "wrap the function with kind='async'" in str(told[0].message)


async def test_a_plain_function_that_returns_a_coroutine_is_wrapped_by_saying_so() -> None:
    search = qm.wrap(lambda query, top_k=4: later(query), kind="async")
    assert ids(await search(QUERY)) == ["near", "far"]
    assert (await search.aretrieve(QUERY)).status == "full"


async def test_any_awaitable_can_be_awaited() -> None:
    def search(query: str, top_k: int = 4) -> asyncio.Future[Any]:
        return asyncio.ensure_future(later(query))

    assert ids(await qm.wrap(search, kind="async")(QUERY)) == ["near", "far"]
