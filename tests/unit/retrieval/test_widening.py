"""More passages are asked for than the caller wants only as long as that brings the caller no fewer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware import errors
from qtmiddleware.retrieval import learned
from tests.support.wrapping_world import QUERY, WIDE

ROWS: Final = [{"id": str(n), "score": 1 - n / 99, "text": f"Note {n}"} for n in range(60)]
Answer = Callable[[int], Any]


class Failed(Exception):
    status_code = 503


class World:
    """A function that answers by a script, one answer per question, and a clock."""

    def __init__(self, way: str, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
        self.now, self.numbers, self._is_async = 1e6, list[int](), way == "async"
        monkeypatch.setattr(learned, "monotonic", lambda: self.now)
        search, asearch = self._search, self._asearch
        qm = qtm.QueryMiddleware({"limits": limits})
        self._wrapped: Any = qm.wrap(asearch) if self._is_async else qm.wrap(search)

    def _search(self, query: str, limit: int = 5) -> Any:
        self.numbers.append(limit)
        return self.answer(limit)

    async def _asearch(self, query: str, limit: int = 5) -> Any:
        return self._search(query, limit)

    def ask(self, answer: Answer, limit: int = 5) -> tuple[list[int], Any]:
        """The numbers that the function is asked for, and how many passages the caller gets."""
        self.answer, self.numbers = answer, []
        found = self._wrapped(QUERY, limit)
        found = asyncio.run(found) if self._is_async else found
        return self.numbers, found if found is None else len(found)


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(request.param, monkeypatch)


def healthy(limit: int) -> Any:
    return ROWS[:limit]


def holding(count: int) -> Answer:
    return lambda limit: ROWS[: min(limit, count)]


def failing(error: Exception) -> Answer:
    def answer(limit: int) -> Any:
        if limit > 20:
            raise error
        return ROWS[:limit]

    return answer


def giving(response: Any) -> Answer:
    return lambda limit: response if limit > 20 else ROWS[:limit]


NO_GOOD: Final[dict[str, Answer]] = {
    "nothing": giving([]),
    "None": giving(None),
    "one": giving(ROWS[:1]),
    "its default": giving(ROWS[:10]),
    "an error as a mapping": giving({"error": "too many"}),
    "an error as a text": giving("too many"),
    "a refusal": failing(ValueError("at most 20")),
    "a service error": failing(Failed()),
    "a timeout": failing(TimeoutError("read timed out")),
    "a reset": failing(ConnectionResetError()),
}


@pytest.mark.parametrize("name", NO_GOOD)
def test_a_function_that_cannot_answer_for_many_is_asked_as_the_caller_asks_for_ten_minutes(
    name: str, world: World
) -> None:
    answer = NO_GOOD[name]
    assert world.ask(answer, 15) == ([WIDE, 15], 15)
    assert world.ask(answer, 15) == ([15], 15)
    world.now += 599
    assert world.ask(answer, 15) == ([15], 15)
    world.now += 1
    assert world.ask(answer, 15) == ([WIDE, 15], 15)


def test_one_failure_changes_nothing_ten_minutes_later(world: World) -> None:
    assert world.ask(healthy) == ([WIDE], 5)
    assert world.ask(failing(Failed())) == ([WIDE, 5], 5)
    world.now += 600
    assert [world.ask(healthy) for _ in range(3)] == [([WIDE], 5)] * 3


def test_what_is_small_is_found_out_once(world: World) -> None:
    assert [world.ask(holding(3)) for _ in range(3)] == [([WIDE, 5], 3), ([WIDE], 3), ([WIDE], 3)]
    # As behind a filter: each new size is compared once.
    sizes = [world.ask(holding(count))[0] for count in (1, 1, 0, 0)]
    assert sizes == [[WIDE, 5], [WIDE], [WIDE, 5], [WIDE]]
    world.now += 10_000
    assert world.ask(holding(3)) == ([WIDE], 3)


def test_a_small_collection_does_not_excuse_more_that_are_held_back(world: World) -> None:
    assert world.ask(holding(3)) == ([WIDE, 5], 3)
    assert world.ask(giving(ROWS[:10]), 15) == ([WIDE, 15], 15)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_failure_after_the_deadline_costs_no_result_either(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(way, monkeypatch, deadlineMs=1)

    def answer(limit: int) -> Any:
        time.sleep(0.005)
        return failing(Failed())(limit)

    assert world.ask(answer) == ([WIDE, 5], 5)
    assert world.ask(answer) == ([5], 5)


class Named(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    "error",
    [
        Named(status_code=429),
        Named(status=429),
        Named(response=Named(status_code=429)),
        type("ThrottlingException", (Exception,), {})(),
        type("RateLimitError", (Exception,), {})(),
        type("ResourceExhausted", (Exception,), {})(),
    ],
    ids=lambda error: f"{type(error).__name__} {vars(error)}"[:40],
)
def test_a_service_with_too_many_calls_gets_no_further_one(error: Exception, world: World) -> None:
    assert errors.is_rate_limit(error)
    with pytest.raises(type(error)):
        world.ask(failing(error))
    assert world.numbers == [WIDE]
    assert not errors.is_rate_limit(Failed())
