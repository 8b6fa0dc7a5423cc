"""Worlds for the drivers' tests: real functions, written once, performed blocking, awaiting and in threads.

A behaviour is a generator function of one argument. What it yields it waits for: a `Signal`. A
blocking world waits in the thread, an awaiting one on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from threading import Event
from typing import Any, TypeVar

from qtmiddleware.protocols import Prompt
from qtmiddleware.runtime.drivers import Bulkhead, arun, run
from qtmiddleware.runtime.steps import Ask, Beside, Flow, Leaf, Outcome, Search, Together
from qtmiddleware.types import Deadline
from tests.support.waiting import PATIENCE, await_until

T = TypeVar("T")
MODES = ("blocking", "awaiting", "awaiting_threads")


class NeverSet(AssertionError):
    """A signal that had to come did not."""


class Signal:
    """Something to wait for, in a thread or on a loop."""

    def __init__(self, *, is_set: bool = False) -> None:
        self._event = Event()
        if is_set:
            self._event.set()

    def set(self) -> None:
        self._event.set()

    def wait(self) -> None:
        if not self._event.wait(PATIENCE):
            raise NeverSet

    async def awaited(self) -> None:
        await await_until(self._event.is_set)
        # As after any wait, the others have their turn first.
        await asyncio.sleep(0)


Behaviour = Callable[[Any], Generator[Signal, None, Any]]


def blocking(behaviour: Behaviour, argument: Any) -> Any:
    running = behaviour(argument)
    while True:
        try:
            signal = next(running)
        except StopIteration as stop:
            return stop.value
        signal.wait()


async def awaiting(behaviour: Behaviour, argument: Any) -> Any:
    running = behaviour(argument)
    try:
        while True:
            try:
                signal = next(running)
            except StopIteration as stop:
                return stop.value
            await signal.awaited()
    finally:
        running.close()


def echo(argument: Any) -> Generator[Signal, None, Any]:
    return f"found {argument}"
    yield


class Model:
    """A language model that behaves; *can_async* says whether it can be awaited."""

    name = "behaving"

    def __init__(self, behaviour: Behaviour, *, can_async: bool) -> None:
        self._behaviour = behaviour
        self.can_async = can_async

    def complete(self, prompt: Prompt, deadline: Deadline) -> Any:
        return blocking(self._behaviour, (prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Any:
        return await awaiting(self._behaviour, (prompt, deadline))


class World:
    """A world of behaviours."""

    def __init__(
        self,
        search: Behaviour = echo,
        *,
        embed: Behaviour = echo,
        model: Behaviour | None = None,
        can_await_calls: bool,
    ) -> None:
        self._search = search
        self._embed = embed
        self.can_await_calls = can_await_calls
        self.bulkhead = Bulkhead()
        self.model: Any = None if model is None else Model(model, can_async=can_await_calls)

    def search(self, step: Search) -> Any:
        return blocking(self._search, step.text)

    def asearch(self, step: Search) -> Awaitable[Any]:
        return awaiting(self._search, step.text)

    def embed(self, texts: Sequence[str]) -> Any:
        return blocking(self._embed, texts)

    def aembed(self, texts: Sequence[str]) -> Awaitable[Any]:
        return awaiting(self._embed, texts)


def performed(mode: str, flow: Flow[T], **behaviours: Any) -> T:
    """The result of *flow*, performed by the driver *mode* names in a world of *behaviours*."""
    world = World(can_await_calls=mode == "awaiting", **behaviours)
    if mode == "blocking":
        return run(flow, world)
    return asyncio.run(arun(flow, world))


def searches(*texts: str) -> list[Search]:
    return [Search(text) for text in texts]


def ask(query: str = "q", deadline: Deadline | None = None) -> Ask:
    return Ask(Prompt("rewrite", "1", "system", query, (), query), deadline or Deadline())


def one(step: Any) -> Flow[Any]:
    """The flow of a single step; its result is the step's answer."""
    return (yield step)


def own_and(steps: Sequence[Any], deadline: Deadline, limit: int) -> Flow[list[Outcome]]:
    """The flow of the caller's own search, the first of *steps*, with the others beside it; answers an outcome each."""

    def others(rest: Sequence[Leaf]) -> Flow[list[Outcome]]:
        return (yield Together(rest, deadline, limit))

    first, *rest = steps
    outcome, beside = yield Beside(first, others(rest), limit)
    return [
        outcome,
        *(beside.value if beside.has_succeeded else [Outcome(late=True) for _ in rest]),
    ]
