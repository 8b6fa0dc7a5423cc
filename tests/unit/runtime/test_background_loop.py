"""One event loop of our own for all who have none."""

from __future__ import annotations

from qtmiddleware.runtime.background_loop import (
    run_in_background_loop,
)


def test_the_loop_may_be_asked_from_inside_itself_and_waits_for_nobody() -> None:
    async def nest(depth: int) -> int:
        return 1 + run_in_background_loop(nest(depth - 1), 30.0) if depth else 0

    assert run_in_background_loop(nest(3), 30.0) == 3
