"""Waiting for the thing itself: for as long as the busiest machine needs, and not a moment longer than it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 120.0
"""Seconds after which a test gives up waiting; a machine on which everything works never gets there."""


def wait_until(holds: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Return as soon as *holds* is true; fail after *seconds*."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


async def await_until(holds: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Return as soon as *holds* is true, and let the loop go on meanwhile; fail after *seconds*."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def timeout_when(holds: Callable[[], object]) -> AsyncIterator[None]:
    """An `asyncio.timeout` that runs out when *holds* is true, however long that takes."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE) as limit:

        async def watch() -> None:
            await await_until(holds)
            limit.reschedule(loop.time())

        watching = loop.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])


def with_enough_time(
    attempt: Callable[[float], T], is_enough: Callable[[T], object], *, seconds: float = 0.1
) -> T:
    """Return the outcome of *attempt* with the first time limit that is enough.

    For a test that has to see one thing in time and another one late, and cannot say how fast the
    machine is. The limit begins with *seconds* and grows fourfold up to `PATIENCE`; *is_enough*
    looks only at what had to be in time. With the last limit the outcome is returned as it is.
    """
    while not is_enough(outcome := attempt(seconds)) and seconds < PATIENCE:
        seconds = min(4 * seconds, PATIENCE)
    return outcome
