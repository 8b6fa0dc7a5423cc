"""One event loop of our own for all who have none."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from threading import Event, Thread

import pytest

from qtmiddleware.runtime.background_loop import (
    run_in_background_loop,
)
from tests.support.waiting import PATIENCE, with_enough_time

SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


async def loop_id() -> int:
    return id(asyncio.get_running_loop())


def test_callers_of_all_threads_share_one_loop() -> None:
    found: list[int] = [run_in_background_loop(loop_id())]
    threads = [
        Thread(target=lambda: found.append(run_in_background_loop(loop_id()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(set(found)) == 1


def test_what_the_coroutine_raises_is_raised_also_a_timeout_of_its_own() -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        run_in_background_loop(fail(), 30.0)


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


def test_the_context_of_the_caller_is_visible_inside() -> None:
    async def look() -> str:
        return SEEN.get()

    SEEN.set("mine")
    assert run_in_background_loop(look()) == "mine"


def test_the_loop_may_be_asked_from_inside_itself_and_waits_for_nobody() -> None:
    async def nest(depth: int) -> int:
        return 1 + run_in_background_loop(nest(depth - 1), 30.0) if depth else 0

    assert run_in_background_loop(nest(3), 30.0) == 3


def test_whoever_blocks_the_loop_keeps_no_other_caller_beyond_its_timeout() -> None:
    blocking, release = Event(), Event()

    async def block() -> None:
        blocking.set()
        release.wait(30)

    blocker = Thread(target=lambda: run_in_background_loop(block()))
    blocker.start()
    assert blocking.wait(PATIENCE)
    with pytest.raises(TimeoutError):
        run_in_background_loop(loop_id(), 0.01)
    assert not release.is_set()
    release.set()
    blocker.join(10)
    assert run_in_background_loop(loop_id(), 30.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_a_loop_of_its_own() -> None:
    run_in_background_loop(loop_id())
    child = os.fork()
    if not child:
        try:
            os._exit(0 if run_in_background_loop(loop_id(), 30.0) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
