"""Cancels a call at each of its await points, one after the other."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Final

from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.concurrency_world import found, scripted
from tests.support.living import tasks_left
from tests.support.waiting import await_until

MOST_STEPS: Final = 2_000


class Counted:
    """What was begun and how often it came to its end."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def __enter__(self) -> Counted:
        self.begun += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.ended += 1


class Model:
    """A model that takes a few turns of the loop for each reply and each piece."""

    name = "steps"
    can_async = True

    def __init__(self, counted: Counted) -> None:
        self.counted = counted
        self._scripted = ScriptedModel(scripted)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self._scripted.complete(prompt, deadline)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        with self.counted:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return await self._scripted.acomplete(prompt, deadline)

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
        with self.counted:
            await asyncio.sleep(0)
            async for piece in self._scripted.astream(prompt, deadline):
                await asyncio.sleep(0)
                yield piece


def searching(counted: Counted) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def retrieve(query: str, top_k: int = 3) -> Any:
        with counted:
            for _ in range(2):
                await asyncio.sleep(0)
            return found(query, top_k)

    return retrieve


class Steps:
    """A loop's task factory under which *victim* is cancelled when all tasks together have waited *at* times."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.taken = 0
        self.in_vain = False
        self.victim: asyncio.Task[Any] | None = None

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(self._driven(coroutine), loop=loop, **options)
        # One that is cancelled before it begins is not begun; a task of its own would have told it.
        task.add_done_callback(lambda _: coroutine.close())
        return task

    async def _driven(self, coroutine: Any) -> Any:
        return await _Driven(self, coroutine)

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.at and self.victim is not None:
            self.in_vain = not self.victim.cancel()


class _Driven:
    """Waits for *coroutine* and counts every time it waits for something itself."""

    def __init__(self, steps: Steps, coroutine: Any) -> None:
        self._steps = steps
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        send: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                waited_for = send()
            except StopIteration as stop:
                return stop.value
            self._steps.step()
            try:
                yield waited_for
            except BaseException as error:
                send = lambda error=error: self._coroutine.throw(error)  # noqa: E731
            else:
                send = lambda: self._coroutine.send(None)  # noqa: E731


def cancelled_at_every_step(
    call: Callable[[], Awaitable[Any]], counted: Counted, *, closes_late: bool = False
) -> int:
    """Perform *call* again and again, cancelled at each of its await points; answers how many there are.

    What it began has ended when it comes back. With *closes_late* the iterators that it let go of may
    still be closed by the loop then, and end soon.
    """

    async def once(at: int) -> tuple[bool, int]:
        loop = asyncio.get_running_loop()
        complaints: list[Any] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        before = asyncio.all_tasks()
        steps = Steps(at)
        loop.set_task_factory(steps)
        steps.victim = victim = asyncio.ensure_future(call())
        is_cancelled = False
        try:
            await victim
        except asyncio.CancelledError:
            is_cancelled = True
        loop.set_task_factory(None)
        if closes_late:
            # One that is closed lets go of the next.
            await await_until(lambda: asyncio.all_tasks() <= before)
        left = [task for task in tasks_left() - before if not task.done()]
        assert left == [], f"after step {at}: {left}"
        assert counted.begun == counted.ended, f"after step {at}"
        victim = steps.victim = None  # type: ignore[assignment]
        gc.collect(0)
        await asyncio.sleep(0)
        assert complaints == [], f"after step {at}"
        return is_cancelled or steps.in_vain, steps.taken

    async def all_of_them() -> int:
        for at in range(1, MOST_STEPS):
            had_its_turn, taken = await once(at)
            if not had_its_turn:
                # Only one that was over before its turn came may go unhurt.
                assert taken < at
                return at - 1
        raise AssertionError("it never came to its end")

    return asyncio.run(all_of_them())
