"""Functions that return what can be awaited."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.wrapping_world import QUERY, ids, middleware, rows

qm = middleware()


async def later(query: str) -> Any:
    return rows(query)


async def test_a_plain_function_that_returns_a_coroutine_still_returns_what_can_be_awaited() -> (
    None
):
    pending = qtm.middleware(lambda query: later(query))(QUERY)
    assert inspect.isawaitable(pending)
    assert [row["id"] for row in await pending] == ["far", "near", "last", "end"]


async def test_no_coroutine_is_left_unawaited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "qtmiddleware")  # a kept log record would keep the coroutine too
    search = qtm.middleware(lambda query, top_k=4: later(query))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(await search(QUERY)) == 4
        gc.collect()  # a coroutine nobody awaited warns when it goes
    assert [it.category for it in told] == [qtm.SetupWarning]
    assert "wrap the function with kind='async'" in str(told[0].message)


async def test_any_awaitable_can_be_awaited() -> None:
    def search(query: str, top_k: int = 4) -> asyncio.Future[Any]:
        return asyncio.ensure_future(later(query))

    assert ids(await qm.wrap(search, kind="async")(QUERY)) == ["near", "far"]
