"""One event loop of our own for all who have none."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from threading import Event, Thread

import pytest

from qtmiddleware.background_loop import await_in_background_loop, run_in_background_loop

SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


async def loop_id() -> int:
    return id(asyncio.get_running_loop())


def test_blocking_callers_of_all_threads_and_awaiting_ones_share_one_loop() -> None:
    found: list[int] = [run_in_background_loop(loop_id)]
    threads = [Thread(target=lambda: found.append(run_in_background_loop(loop_id))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.extend(asyncio.run(await_in_background_loop(loop_id)) for _ in range(2))
    assert len(found) == 7
    assert len(set(found)) == 1


def test_what_the_coroutine_raises_is_raised_also_a_timeout_of_its_own() -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        run_in_background_loop(fail, 30.0)


def test_after_the_timeout_the_coroutine_is_cancelled() -> None:
    cancelled = Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        run_in_background_loop(hang, 0.01)
    assert cancelled.wait(10)


def test_a_cancelled_caller_cancels_the_coroutine() -> None:
    begun, cancelled = Event(), Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def caller() -> None:
        task = asyncio.create_task(await_in_background_loop(hang))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(caller())
    assert cancelled.wait(10)


def test_the_context_of_the_caller_is_visible_inside() -> None:
    async def look() -> str:
        return SEEN.get()

    SEEN.set("mine")
    assert run_in_background_loop(look) == "mine"


def test_the_loop_may_be_asked_from_inside_itself_and_waits_for_nobody() -> None:
    async def outer() -> str:
        return run_in_background_loop(inner, 30.0)

    async def inner() -> str:
        return "reached"

    assert run_in_background_loop(outer, 30.0) == "reached"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_a_loop_of_its_own() -> None:
    run_in_background_loop(loop_id)
    child = os.fork()
    if not child:
        try:
            os._exit(0 if run_in_background_loop(loop_id, 30.0) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
