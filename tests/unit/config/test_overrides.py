"""Settings overridden for a block, in this thread or task alone."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from qtmiddleware.config import Layers, get_active_overrides, override


def test_outside_of_a_block_nothing_is_overridden() -> None:
    assert get_active_overrides() == ()
    with override({"top_k": 2}):
        pass
    assert get_active_overrides() == ()


def test_inner_blocks_lie_on_top_and_end() -> None:
    with override({"top_k": 2, "chunk_size": 10}):
        with override({"top_k": 3}):
            assert get_active_overrides() == ({"top_k": 2, "chunk_size": 10}, {"top_k": 3})
        assert get_active_overrides() == ({"top_k": 2, "chunk_size": 10},)


def test_a_block_that_fails_ends_too() -> None:
    with pytest.raises(ZeroDivisionError), override({"top_k": 2}):
        raise ZeroDivisionError
    assert get_active_overrides() == ()


def test_a_whole_function_can_be_such_a_block() -> None:
    @override({"top_k": 7})
    def inside() -> Layers:
        return get_active_overrides()

    assert [inside(), inside(), get_active_overrides()] == [({"top_k": 7},), ({"top_k": 7},), ()]


def test_what_is_changed_in_the_callers_mapping_later_has_no_effect() -> None:
    values: dict[str, Any] = {"top_k": 2, "fusion": {"rrf_k": 10}}
    with override(values):
        values["top_k"] = 99
        values["fusion"]["rrf_k"] = 99
        assert get_active_overrides() == ({"top_k": 2, "fusion": {"rrf_k": 10}},)


def test_threads_do_not_see_each_other() -> None:
    together = Barrier(8)

    def inside(number: int) -> tuple[Layers, Layers]:
        before = get_active_overrides()
        with override({"top_k": number}):
            together.wait()
            seen = get_active_overrides()
            together.wait()
        return before, seen

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(inside, range(8))) == [
            ((), ({"top_k": number},)) for number in range(8)
        ]


async def test_tasks_do_not_see_each_other_but_their_makers_block() -> None:
    entered = [asyncio.Event() for _ in range(5)]

    async def inside(number: int) -> Layers:
        with override({"top_k": number}):
            entered[number].set()
            await asyncio.gather(*(event.wait() for event in entered))
            return get_active_overrides()

    with override({"chunk_size": 10}):
        seen = await asyncio.gather(*(inside(number) for number in range(5)))
    assert seen == [({"chunk_size": 10}, {"top_k": number}) for number in range(5)]
    assert get_active_overrides() == ()


def test_a_copied_context_takes_the_block_along() -> None:
    with override({"top_k": 2}):
        context = contextvars.copy_context()
    assert context.run(get_active_overrides) == ({"top_k": 2},)
    assert get_active_overrides() == ()
