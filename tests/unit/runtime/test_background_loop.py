"""One event loop of our own for all who have none."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from qtmiddleware.runtime.background_loop import (
    run_in_background_loop,
)
from tests.support.waiting import PATIENCE, with_enough_time


def test_after_the_timeout_the_coroutine_is_cancelled() -> None:
    begun, cancelled = Event(), Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def run(seconds: float) -> None:
        with pytest.raises(TimeoutError):
            run_in_background_loop(hang(), seconds)

    with_enough_time(run, lambda _: begun.is_set(), seconds=0.01)
    assert cancelled.wait(PATIENCE)


def test_the_loop_may_be_asked_from_inside_itself_and_waits_for_nobody() -> None:
    async def nest(depth: int) -> int:
        return 1 + run_in_background_loop(nest(depth - 1), 30.0) if depth else 0

    assert run_in_background_loop(nest(3), 30.0) == 3
